"""A peer for the schema registry: Apicurio Registry, with its storage in memory as it comes."""

import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from .jars import CACHE, RESOLVE_S, Unavailable, free_port, java_of, maven
from .servers import START_S, Server

VERSION = "3.3.3"
MIN_JAVA = 21
# Confluent's API.
PATH = "/apis/ccompat/v7"


class Apicurio:
    """Apicurio Registry with its default settings, on loopback."""

    name = f"Apicurio Registry {VERSION}"

    def __init__(self, java: str, directory: Path) -> None:
        self._java = java
        self._jar = directory / "quarkus-run.jar"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        began_at = time.monotonic()
        with (directory / "server.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    self._java,
                    "-Dquarkus.http.host=127.0.0.1",
                    f"-Dquarkus.http.port={port}",
                    "-Dquarkus.management.host=127.0.0.1",
                    f"-Dquarkus.management.port={free_port()}",
                    "-jar",
                    str(self._jar),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        while time.monotonic() - began_at < START_S and process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}/subjects", timeout=5).close()
            except (OSError, urllib.error.URLError):
                time.sleep(0.1)
            else:
                took_s = time.monotonic() - began_at
                address = f"127.0.0.1:{port}"
                return Server(self.name, address, process, took_s, {"registry": address})
        process.kill()
        process.wait()
        raise Unavailable(f"it did not start: {(directory / 'server.log').read_text()[-500:]}")


def apicurio() -> Apicurio:
    """Return the peer, downloaded on first use. Raises Unavailable."""
    java = java_of(MIN_JAVA)
    directory = CACHE / f"apicurio-{VERSION}"
    if not directory.exists():
        _download(directory)
    return Apicurio(java, directory)


def _download(directory: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
    with tempfile.TemporaryDirectory() as scratch:
        command = [maven(), "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
        command.append(f"-DoutputDirectory={scratch}")
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=RESOLVE_S)
        except subprocess.SubprocessError as error:
            raise Unavailable(f"mvn cannot download it: {error}") from error
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            archive.extractall(unpacked, filter="data")
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, directory)
