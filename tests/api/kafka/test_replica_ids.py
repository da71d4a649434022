"""Replicas fetch from the cluster listener; the client port serves consumers only."""

import pytest

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.fetch import FetchRequest, ReplicaState

from .wire import Wire


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        pytest.param(12, FetchRequest(replica_id=2), id="by the replica id"),
        pytest.param(
            17, FetchRequest(replica_state=ReplicaState(replica_id=2, replica_epoch=5)), id="by the state"
        ),
    ],
)
def test_the_client_port_refuses_replicas(wire: Wire, version: int, request_: FetchRequest) -> None:
    assert wire.ask(request_, version).error_code == ErrorCode.INVALID_REQUEST


def test_consumers_fetch_as_before(wire: Wire) -> None:
    assert wire.ask(FetchRequest(), 17).error_code == ErrorCode.NONE
