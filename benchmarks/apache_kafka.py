"""The peer: Apache Kafka, one node in combined mode on loopback, with its default settings.

Its published jars are resolved with Maven, once, into the user's cache. Without Maven, Java 17 or a
repository there is no peer, and the report says why.
"""

import base64
import secrets
import subprocess
import time
from pathlib import Path

from . import wire
from .jars import CACHE, Unavailable, free_port, java, resolve
from .servers import START_S, Server

VERSION = "4.1.0"
# Settings that a single node needs; all others have Kafka's defaults.
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
# As in Kafka's start script.
JVM = ("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip


class ApacheKafka:
    """Kafka from its published jars."""

    name = f"Apache Kafka {VERSION}"

    def __init__(self, jars: Path) -> None:
        self._class_path = f"{jars}/*"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        broker = free_port()
        content = _PROPERTIES.format(broker=broker, controller=free_port(), data=directory / "data")
        properties.write_text(content)
        with (directory / "server.log").open("ab") as log:
            if not (directory / "data").exists():
                cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
                self.java(
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    cluster_id,
                    "-c",
                    str(properties),
                    log=log.fileno(),
                ).wait(START_S)
            began_at = time.monotonic()
            process = self.java("kafka.Kafka", str(properties), log=log.fileno(), options=JVM)
        address = f"127.0.0.1:{broker}"
        try:
            wire.wait_until_answering(address, START_S)
        except TimeoutError as error:
            process.kill()
            process.wait()
            raise Unavailable(f"it did not start within {START_S:.0f} s") from error
        return Server(self.name, address, process, time.monotonic() - began_at)

    def java(
        self, main: str, *arguments: str, log: int, options: tuple[str, ...] = ()
    ) -> "subprocess.Popen[bytes]":
        """Run a class of its jars."""
        command = ["java", *options, "-cp", self._class_path, main, *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def apache_kafka() -> ApacheKafka:
    """Return the peer, with jars resolved on first use. Raises Unavailable."""
    java()
    jars = CACHE / f"kafka-{VERSION}"
    if not jars.exists():
        resolve(jars, "org.apache.kafka", "kafka_2.13", VERSION)
    return ApacheKafka(jars)
