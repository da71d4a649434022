"""A peer for the SQS API: ElasticMQ, queues in memory as it comes, from its published jars."""

import socket
import subprocess
import time
from pathlib import Path

from .jars import CACHE, Unavailable, free_port, java, resolve
from .servers import START_S, Server

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
        with (directory / "server.log").open("ab") as log:
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
                stdout=log,
                stderr=log,
            )
        while time.monotonic() - began_at < START_S and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return Server(self.name, f"127.0.0.1:{port}", process, time.monotonic() - began_at)
        process.kill()
        process.wait()
        raise Unavailable(f"it did not start: {(directory / 'server.log').read_text()[-500:]}")


def elasticmq() -> ElasticMQ:
    """The peer, its jars resolved on first use; Unavailable where it cannot be had."""
    java()
    jars = CACHE / f"elasticmq-{VERSION}"
    if not jars.exists():
        resolve(jars, "org.elasticmq", "elasticmq-server_2.13", VERSION)
    return ElasticMQ(jars)
