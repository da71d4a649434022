"""Group members by the hundred: each a connection with the group protocol, and nothing else.

Five hundred clients of any library would not fit on the measured machine. These join, keep their
sessions, revoke and take over partitions as a client does, and without delay, because they have no
work to finish first.
"""

import asyncio
from abc import ABC, abstractmethod
from struct import Struct
from typing import TypeVar

from alpacamq.protocol import schema
from alpacamq.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatTopicPartitions,
)
from alpacamq.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from alpacamq.protocol.notation import ZERO_UUID, Message

from . import sticky
from .roll import Roll
from .wire import CLIENT, Refused

JOIN, HEARTBEAT, LEAVE, SYNC, CONSUMER_HEARTBEAT = 11, 12, 13, 14, 68
JOIN_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, SYNC_VERSION, CONSUMER_VERSION = 5, 3, 3, 3, 0
LOADING, NOT_AVAILABLE, NOT_COORDINATOR = 14, 15, 16
REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79
SESSION_MS = 45_000
REBALANCE_MS = 60_000
# The defaults of librdkafka and Kafka's own client; members of KIP-848 get the interval from the server.
HEARTBEAT_S = 3.0
RETRY_S = 0.1

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")

R = TypeVar("R", bound=Message)


class Wire(asyncio.Protocol):
    """One connection, one request at a time; ignores the answer to a cancelled request."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._asked = 0
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, address: str) -> "Wire":
        host, _, port = address.rpartition(":")
        _, wire = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return wire

    async def ask(self, key: int, version: int, request: Message, answer: type[R]) -> R:
        self._asked += 1
        flexible = version >= type(request).flexible_from
        payload = _HEADER.pack(key, version, self._asked, len(CLIENT)) + CLIENT + (b"\0" if flexible else b"")
        payload += schema.encode(request, version)
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(_SIZE.pack(len(payload)) + payload)
        # After the correlation id and, in flexible versions, an empty list of tagged fields.
        return schema.decode(answer, version, memoryview(await self._answer), 5 if flexible else 4)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop has classes of its own

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _SIZE.size:
            end = _SIZE.size + _SIZE.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            payload = bytes(self._received[_SIZE.size : end])
            del self._received[:end]
            answer = self._answer
            if answer is not None and not answer.done() and _SIZE.unpack_from(payload)[0] == self._asked:
                answer.set_result(payload)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server hung up"))


class Member(ABC):
    """One member of a group that reads one topic; `run` until cancelled, then `leave`."""

    def __init__(self, name: str, group: str, topic: str, roll: Roll) -> None:
        self.name = name
        self.held: frozenset[int] = frozenset()
        self._group = group
        self._topic = topic
        self._roll = roll
        self._wire: Wire | None = None
        self._member_id = ""

    async def run(self, address: str) -> None:
        self._wire = await Wire.to(address)
        self._roll.enter(self.name)
        while True:
            await self._live()

    async def leave(self) -> None:
        """Leave the group; the task that ran the member has ended."""
        await self._say_goodbye()
        self._roll.leave(self.name)
        self.wire.close()

    @property
    def wire(self) -> Wire:
        assert self._wire is not None, "not connected"
        return self._wire

    def _hold(self, partitions: frozenset[int]) -> None:
        self.held = partitions
        self._roll.note(self.name, partitions)

    @abstractmethod
    async def _live(self) -> None:
        """Take part until the member has to rejoin."""

    @abstractmethod
    async def _say_goodbye(self) -> None: ...


class ClassicMember(Member):
    """A member of a classic group; assigns partitions if it is the leader."""

    async def _live(self) -> None:
        before = self.held
        if not await self._take_part():
            return
        if before - self.held:
            return  # revoked partitions can be assigned to others now
        code = 0
        while code == 0:
            await asyncio.sleep(HEARTBEAT_S)
            request = HeartbeatRequest(
                group_id=self._group, generation_id=self._generation, member_id=self._member_id
            )
            code = (await self.wire.ask(HEARTBEAT, HEARTBEAT_VERSION, request, HeartbeatResponse)).error_code
        if code != REBALANCE_IN_PROGRESS:
            raise Refused(f"Heartbeat was answered with error {code}")

    async def _take_part(self) -> bool:
        """Join a generation and apply its assignment; false if the generation ended too soon."""
        joined = await self._join()
        self._generation = joined.generation_id
        assignments = []
        if joined.leader == self._member_id:
            owned = {member.member_id: sticky.owned_in(member.metadata) for member in joined.members}
            assignments = [
                SyncGroupRequestAssignment(
                    member_id=member_id, assignment=sticky.assignment(self._topic, partitions)
                )
                for member_id, partitions in sticky.assign(owned, self._roll.partitions).items()
            ]
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            assignments=assignments,
        )
        synced = await self.wire.ask(SYNC, SYNC_VERSION, request, SyncGroupResponse)
        if synced.error_code == REBALANCE_IN_PROGRESS:
            return False
        if synced.error_code:
            raise Refused(f"SyncGroup was answered with error {synced.error_code}")
        self._hold(sticky.assigned_in(synced.assignment))
        return True

    async def _join(self) -> JoinGroupResponse:
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[
                    JoinGroupRequestProtocol(
                        name=sticky.NAME, metadata=sticky.subscription(self._topic, self.held)
                    )
                ],
            )
            joined = await self.wire.ask(JOIN, JOIN_VERSION, request, JoinGroupResponse)
            self._member_id = joined.member_id
            if joined.error_code == 0:
                return joined
            if joined.error_code != MEMBER_ID_REQUIRED:
                await _only_if_loading("JoinGroup", joined.error_code)

    async def _say_goodbye(self) -> None:
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(member_id=self._member_id)])
        left = await self.wire.ask(LEAVE, LEAVE_VERSION, request, LeaveGroupResponse)
        if left.error_code:
            raise Refused(f"LeaveGroup was answered with error {left.error_code}")


class ConsumerMember(Member):
    """A member of KIP-848: sends only heartbeats, and the server assigns."""

    _epoch = 0
    _topic_id = ZERO_UUID

    async def _live(self) -> None:
        joining = self._epoch == 0
        told = await self._heartbeat(
            ConsumerGroupHeartbeatRequest(
                group_id=self._group,
                member_id=self._member_id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=REBALANCE_MS if joining else -1,
                subscribed_topic_names=[self._topic] if joining else None,
                topic_partitions=[] if joining else None,
            )
        )
        while told.assignment is not None and (has := self._read(told)) != self.held:
            self._hold(has)
            owned = [HeartbeatTopicPartitions(topic_id=self._topic_id, partitions=sorted(has))] if has else []
            told = await self._heartbeat(
                ConsumerGroupHeartbeatRequest(
                    group_id=self._group,
                    member_id=self._member_id,
                    member_epoch=self._epoch,
                    topic_partitions=owned,
                )
            )
        await asyncio.sleep(told.heartbeat_interval_ms / 1000)

    async def _say_goodbye(self) -> None:
        await self._heartbeat(
            ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=self._member_id, member_epoch=-1)
        )

    async def _heartbeat(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        while True:
            told = await self.wire.ask(
                CONSUMER_HEARTBEAT, CONSUMER_VERSION, request, ConsumerGroupHeartbeatResponse
            )
            if told.error_code == 0:
                self._member_id, self._epoch = told.member_id or self._member_id, told.member_epoch
                return told
            await _only_if_loading("ConsumerGroupHeartbeat", told.error_code)

    def _read(self, told: ConsumerGroupHeartbeatResponse) -> frozenset[int]:
        assert told.assignment is not None
        found: set[int] = set()
        for topic in told.assignment.topic_partitions:
            self._topic_id = topic.topic_id
            found.update(topic.partitions)
        return frozenset(found)


async def _only_if_loading(what: str, code: int) -> None:
    """Wait if the coordinator is not available yet; raise for any other error."""
    if code not in (LOADING, NOT_AVAILABLE, NOT_COORDINATOR):
        raise Refused(f"{what} was answered with error {code}")
    await asyncio.sleep(RETRY_S)
