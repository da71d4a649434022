"""The peer: Apache Kafka, one node in combined mode on loopback, with its default settings.

Its published jars are resolved by name with Maven, once, into the user's cache. Without Maven,
Java 17 or a repository to resolve from there is no peer, and the report says why.
"""

import base64
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from . import wire
from .servers import START_S, Server

VERSION = "4.1.0"
MIN_JAVA = 17
CACHE = Path.home() / ".cache" / "alpacamq-benchmarks"
RESOLVE_S = 300.0

_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>alpacamq</groupId><artifactId>peer</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
# What a single node cannot do without; everything else stays as Kafka has it.
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
log.dirs={data}
"""
# As in the start script that Kafka ships.
_JVM = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip


class Unavailable(Exception):
    """The peer cannot be had on this machine; the text says why."""


class ApacheKafka:
    """Kafka from its published jars."""

    name = f"Apache Kafka {VERSION}"

    def __init__(self, jars: Path) -> None:
        self._class_path = f"{jars}/*"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        broker = _free_port()
        content = _PROPERTIES.format(broker=broker, controller=_free_port(), data=directory / "data")
        properties.write_text(content)
        with (directory / "server.log").open("ab") as log:
            if not (directory / "data").exists():
                cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
                self._java(
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    cluster_id,
                    "-c",
                    str(properties),
                    log=log.fileno(),
                ).wait(START_S)
            began_at = time.monotonic()
            process = self._java("kafka.Kafka", str(properties), log=log.fileno(), options=_JVM)
        address = f"127.0.0.1:{broker}"
        try:
            wire.wait_until_answering(address, START_S)
        except TimeoutError:
            process.kill()
            process.wait()
            raise
        return Server(self.name, address, process, time.monotonic() - began_at)

    def _java(
        self, main: str, *arguments: str, log: int, options: tuple[str, ...] = ()
    ) -> "subprocess.Popen[bytes]":
        command = ["java", *options, "-cp", self._class_path, main, *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def apache_kafka() -> ApacheKafka:
    """The peer, its jars resolved on first use; Unavailable where it cannot be had."""
    if (java := shutil.which("java")) is None:
        raise Unavailable("there is no java")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    release = re.search(r'version "(\d+)', told)
    if release is None or int(release[1]) < MIN_JAVA:
        raise Unavailable(f"it needs Java {MIN_JAVA}, here is {told.splitlines()[0]}")
    jars = CACHE / f"kafka-{VERSION}"
    if not jars.exists():
        _resolve(jars)
    return ApacheKafka(jars)


def _resolve(jars: Path) -> None:
    if (maven := shutil.which("mvn")) is None:
        raise Unavailable("there is no mvn to resolve its jars with")
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch)
        (project / "pom.xml").write_text(_POM)
        command = [maven, "-q", "-B", "-f", str(project / "pom.xml"), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={project / 'jars'}"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=RESOLVE_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"its jars cannot be resolved: {error}") from error
        jars.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(project / "jars", jars)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
