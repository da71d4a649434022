"""What a broker answers to requests of a newer version, which it does not know."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from alpacamq.broker.peers.connection import DEFAULT_LIMITS, CallConnection, dial
from alpacamq.broker.peers.handshake import Purpose
from alpacamq.broker.peers.values import Values
from alpacamq.broker.remote.shards import ShardCall
from alpacamq.cluster.bootstrap import BOOTSTRAP_VALUES
from alpacamq.cluster.commands import AllocateProducerIds
from alpacamq.model.errors import PeerFailed
from alpacamq.model.ids import BrokerId
from alpacamq.model.state_machine import Request
from alpacamq.model.topics import OFFSETS_TOPIC

from .three_brokers import three_brokers


class NovelCall(Request[int], frozen=True, tag="novel-call"):
    """A request that a later version has added."""

    text: str = ""


class NovelCommand(msgspec.Struct, frozen=True, tag="novel-command"):
    """A command to the controller that a later version has added."""


class NovelControllerCall(Request[int], frozen=True, kw_only=True, tag="controller-call"):
    """As the later version sends it."""

    command: NovelCommand


async def test_unknown_requests_fail_alone_and_say_why(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        member = cluster[1].member
        assert member is not None
        values = Values((NovelCall, NovelControllerCall, ShardCall), BOOTSTRAP_VALUES)
        loop = asyncio.get_running_loop()
        connection = await dial(
            cluster.addresses[2],
            member.local(),
            BrokerId(2),
            Purpose.CALLS,
            member.secret,
            lambda peer: CallConnection(loop, peer, values, DEFAULT_LIMITS),
        )
        try:
            connection.post(NovelCall())
            unknown: list[msgspec.Struct] = [
                NovelCall(),
                NovelControllerCall(command=NovelCommand()),
                ShardCall(topic=OFFSETS_TOPIC, shard=0, kind="Novel", request=msgspec.Raw(b"\x80")),
            ]
            for request in unknown:
                with pytest.raises(PeerFailed, match="run different versions"):
                    await connection.call(request, 5000)
            assert not connection.is_closed
        finally:
            connection.close("done")
        # No other node notices.
        for broker in cluster.brokers.values():
            await broker.metadata.ask(AllocateProducerIds(count=1))
