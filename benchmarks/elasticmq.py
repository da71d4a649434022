"""A peer for the SQS API: ElasticMQ, queues in memory as it comes, from its published jars."""

import subprocess
import time
from pathlib import Path

from .jars import CACHE, free_port, java, resolve
from .servers import Server, started

VERSION = "1.7.1"


class ElasticMQ:
    """ElasticMQ with its default settings, on loopback."""

    name = f"ElasticMQ {VERSION}"

    def __init__(self, jars: Path) -> None:
        self._class_path = f"{jars}/*"

    def start(self, directory: Path) -> Server:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        began_at = time.monotonic()
        log = directory / "server.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [
                    "java",
                    f"-Drest-sqs.bind-port={port}",
                    "-Drest-sqs.bind-hostname=127.0.0.1",
                    f"-Dnode-address.port={port}",
                    "-Drest-stats.enabled=false",
                    "-cp",
                    self._class_path,
                    "org.elasticmq.server.Main",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        return started(self.name, process, port, log, began_at)


def elasticmq() -> ElasticMQ:
    """The peer, its jars resolved on first use; raises Unavailable."""
    java()
    jars = CACHE / f"elasticmq-{VERSION}"
    if not jars.exists():
        resolve(jars, "org.elasticmq", "elasticmq-server_2.13", VERSION)
    return ElasticMQ(jars)
