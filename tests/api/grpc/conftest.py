"""A broker for the tests of the gRPC API."""

from collections.abc import Iterator

import pytest

from tests.brokers import Broker

CONFIG = """
[grpc]
header_timeout_ms = 2000
max_message_bytes = 1048576
in_flight_bytes = 8388608
"""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("grpc") / "data", config=CONFIG)
    try:
        yield broker.start()
    finally:
        broker.end()
