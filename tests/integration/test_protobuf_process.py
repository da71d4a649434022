"""The process that parses Protobuf schemas ends with its broker, however that ends."""

import json
import signal
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.brokers import Broker

SCHEMA = 'syntax = "proto3"; message Parcel { string city = 1; }'


def children(broker: Broker) -> list[psutil.Process]:
    return psutil.Process(broker.process.pid).children(recursive=True)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_leaves_no_process_behind(tmp_path: Path, ending: signal.Signals) -> None:
    broker = Broker(tmp_path).start()
    try:
        assert not children(broker)
        body = json.dumps({"schemaType": "PROTOBUF", "schema": SCHEMA}).encode()
        url = f"http://{broker.registry_address}/subjects/parcels-value/versions"
        with urllib.request.urlopen(url, body) as response:
            assert response.status == 200
        (child,) = children(broker)
        assert "alpacamq.broker.protobuf_worker" in child.cmdline()
        broker.signal(ending)
        child.wait(timeout=60)
        assert not child.is_running()
    finally:
        broker.end()
