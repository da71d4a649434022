"""Runs transcripts of groups: named clients, one group, one line per event.

    join a [protocols=range,sticky] [topics=t,u] [instance=i] [session=10s] [rebalance=60s] [old|handshake]
    sync a [a=0,1 b=2]          heartbeat a       leave a      commit a orders-0=5 [metadata=text]
    leave-instance i            fetch orders-0    fetch-stable orders-0      delete-offsets orders-0
    begin-commit p orders-0=5   end-transaction p commit|abort               reset orders-0=5
    consumer-join a             describe          list         delete-group  disconnect a
    advance 10s                 restart

A client takes its member id and generation from the last reply.
"""

import re
from collections.abc import Iterable
from typing import Any

from alpacamq.coordinator.consumer.messages import ConsumerHeartbeatReply, ConsumerHeartbeatRequest
from alpacamq.coordinator.groups import DescribeRequest
from alpacamq.coordinator.messages import (
    Accepted,
    CommitRequest,
    CompleteTransactionRequest,
    DeleteGroupRequest,
    DeleteOffsetsRequest,
    FetchOffsetsReply,
    FetchOffsetsRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    ListReply,
    ListRequest,
    MemberAssignment,
    OffsetToCommit,
    PartitionResults,
    Protocol,
    ResetOffsetsRequest,
    SyncReply,
    SyncRequest,
    TxnCommitRequest,
)
from alpacamq.model.errors import AlpacaError, MemberIdRequired, UnknownMember
from alpacamq.model.ids import TopicName, TopicPartition
from alpacamq.model.state_machine import Request

from .group_host import GROUP, GroupHost

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * _UNITS_MS[unit]


def partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(TopicName(topic), int(index))


def subscription(topics: Iterable[str]) -> bytes:
    names = [topic.encode() for topic in topics]
    body = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return b"\x00\x00" + len(names).to_bytes(4, "big") + body


class Stage:
    """Runs one command after the other and reports their outcome."""

    def __init__(self) -> None:
        self.host = GroupHost()
        self.member_ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self._sent: dict[int, tuple[str, str]] = {}
        self._reported: set[object] = set()

    def act(self, command: str) -> str:
        """Run a command; return a line for every reply and every record written."""
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        written = len(self.host.log)
        getattr(self, "_" + verb.replace("-", "_"))(plain, options)
        lines = [self._report(handle) for handle in self.host.answers if handle not in self._reported]
        self._reported.update(self.host.answers)
        if records := len(self.host.log) - written:
            lines.append(f"{records} written")
        return "\n".join(lines or ["nothing"])

    def _send(self, name: str, event: str, request: Request[Any]) -> None:
        handle = self.host.send(request)
        self._sent[handle] = (name, event)

    def _join(self, plain: list[str], options: dict[str, str]) -> None:
        name, flags = plain[0], plain[1:]
        metadata = subscription(options.get("topics", "orders").split(","))
        if "instance" in options:
            self.instances[name] = options["instance"]
        request = JoinRequest(
            group=GROUP,
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(
                Protocol(each, metadata) for each in options.get("protocols", "range").split(",")
            ),
            session_timeout_ms=milliseconds(options.get("session", "10s")),
            rebalance_timeout_ms=milliseconds(options.get("rebalance", "60s")),
            member_id=self.member_ids.get(name, ""),
            instance_id=self.instances.get(name),
            client_id=name,
            require_known_member_id="handshake" in flags,
            knows_skip_assignment="old" not in flags,
        )
        self._send(name, "join", request)

    def _sync(self, plain: list[str], options: dict[str, str]) -> None:
        name = plain[0]
        request = SyncRequest(
            group=GROUP,
            generation=self.generations.get(name, -1),
            member_id=self.member_ids.get(name, ""),
            instance_id=self.instances.get(name),
            assignments=tuple(
                MemberAssignment(member_id=self.member_ids.get(each, each), assignment=given.encode())
                for each, given in options.items()
            ),
        )
        self._send(name, "sync", request)

    def _heartbeat(self, plain: list[str], options: dict[str, str]) -> None:
        name = plain[0]
        request = HeartbeatRequest(
            group=GROUP,
            generation=self.generations.get(name, -1),
            member_id=self.member_ids.get(name, ""),
            instance_id=self.instances.get(name),
        )
        self._send(name, "heartbeat", request)

    def _leave(self, plain: list[str], options: dict[str, str]) -> None:
        leaving = LeavingMember(
            member_id=self.member_ids.get(plain[0], ""), instance_id=self.instances.get(plain[0])
        )
        self._send(plain[0], "leave", LeaveRequest(group=GROUP, members=(leaving,)))

    def _leave_instance(self, plain: list[str], options: dict[str, str]) -> None:
        leaving = tuple(LeavingMember(instance_id=each) for each in plain)
        self._send("admin", "leave", LeaveRequest(group=GROUP, members=leaving))

    def _offsets(self, options: dict[str, str]) -> tuple[OffsetToCommit, ...]:
        metadata = options.get("metadata", "")
        return tuple(
            OffsetToCommit(
                topic=partition(name).topic,
                partition=partition(name).partition,
                offset=int(offset),
                metadata=metadata,
            )
            for name, offset in options.items()
            if name != "metadata"
        )

    def _commit(self, plain: list[str], options: dict[str, str]) -> None:
        name = plain[0]
        request = CommitRequest(
            group=GROUP,
            generation=self.generations.get(name, -1),
            member_id=self.member_ids.get(name, ""),
            instance_id=self.instances.get(name),
            offsets=self._offsets(options),
        )
        self._send(name, "commit", request)

    def _reset(self, plain: list[str], options: dict[str, str]) -> None:
        request = ResetOffsetsRequest(group=GROUP, offsets=self._offsets(options))
        self._send("admin", "reset_offsets", request)

    def _begin_commit(self, plain: list[str], options: dict[str, str]) -> None:
        request = TxnCommitRequest(
            producer_id=int(plain[0][1:]), producer_epoch=0, group=GROUP, offsets=self._offsets(options)
        )
        self._send(plain[0], "txn_commit", request)

    def _end_transaction(self, plain: list[str], options: dict[str, str]) -> None:
        request = CompleteTransactionRequest(
            producer_id=int(plain[0][1:]), producer_epoch=0, committed=plain[1] == "commit"
        )
        self._send(plain[0], "complete_transaction", request)

    def _fetch(self, plain: list[str], options: dict[str, str]) -> None:
        request = FetchOffsetsRequest(group=GROUP, partitions=tuple(map(partition, plain)) or None)
        self._send("reader", "fetch_offsets", request)

    def _fetch_stable(self, plain: list[str], options: dict[str, str]) -> None:
        request = FetchOffsetsRequest(
            group=GROUP, partitions=tuple(map(partition, plain)) or None, require_stable=True
        )
        self._send("reader", "fetch_offsets", request)

    def _delete_offsets(self, plain: list[str], options: dict[str, str]) -> None:
        request = DeleteOffsetsRequest(group=GROUP, partitions=tuple(map(partition, plain)))
        self._send("admin", "delete_offsets", request)

    def _consumer_join(self, plain: list[str], options: dict[str, str]) -> None:
        request = ConsumerHeartbeatRequest(
            group=GROUP,
            member_epoch=0,
            member_id=plain[0],
            rebalance_timeout_ms=60_000,
            subscribed_topics=("orders",),
            owned={},
        )
        self._send(plain[0], "consumer_heartbeat", request)

    def _describe(self, plain: list[str], options: dict[str, str]) -> None:
        self._send("admin", "describe", DescribeRequest(group=GROUP))

    def _list(self, plain: list[str], options: dict[str, str]) -> None:
        self._send("admin", "list_groups", ListRequest())

    def _delete_group(self, plain: list[str], options: dict[str, str]) -> None:
        self._send("admin", "delete_group", DeleteGroupRequest(group=GROUP))

    def _disconnect(self, plain: list[str], options: dict[str, str]) -> None:
        for handle, (name, _) in self._sent.items():
            if name == plain[0] and handle not in self.host.answers:
                self.host.machine.cancel(handle)

    def _advance(self, plain: list[str], options: dict[str, str]) -> None:
        self.host.advance(milliseconds(plain[0]))

    def _restart(self, plain: list[str], options: dict[str, str]) -> None:
        self.host.check_log()
        self.host.restart()

    def _report(self, handle: object) -> str:
        assert isinstance(handle, int)
        name, event = self._sent[handle]
        answer = self.host.answers[handle]
        if isinstance(answer, MemberIdRequired | JoinReply | ConsumerHeartbeatReply):
            self.member_ids[name] = answer.member_id
        elif event == "join" and isinstance(answer, UnknownMember):
            del self.member_ids[name]
        if isinstance(answer, JoinReply):
            self.generations[name] = answer.generation
        return f"{name} <- {event.replace('_', ' ')}: {_text(answer)}"


def _text(answer: object) -> str:
    match answer:
        case Accepted():
            return "ok"
        case AlpacaError():
            return f"{type(answer).__name__}, {answer}"
        case JoinReply():
            led = " ".join(each.member_id for each in answer.members)
            skip = ", not to assign" if answer.skip_assignment else ""
            role = f"leads {led}{skip}" if led else f"led by {answer.leader}"
            return f"{answer.member_id} in generation {answer.generation} of {answer.protocol_name}, {role}"
        case SyncReply():
            return f"assigned {answer.assignment.decode() or 'nothing'}"
        case LeaveReply():
            return ", ".join(
                _result(each.member_id or each.instance_id, each.error) for each in answer.members
            )
        case PartitionResults():
            return ", ".join(
                _result(f"{each.topic}-{each.partition}", each.error) for each in answer.partitions
            )
        case FetchOffsetsReply():
            return (
                ", ".join(
                    _result(f"{each.topic}-{each.partition}", each.error, str(each.offset))
                    for each in answer.offsets
                )
                or "nothing"
            )
        case GroupDescription():
            members = " ".join(
                f"{each.member_id}[{each.assignment.decode()}]" if each.assignment else each.member_id
                for each in answer.members
            )
            return f"{answer.state} {members}".strip()
        case ListReply():
            return ", ".join(f"{each.group} {each.type} {each.state}" for each in answer.groups) or "none"
        case ConsumerHeartbeatReply():
            return f"epoch {answer.member_epoch}"
        case _:
            raise AssertionError(f"no words for {answer!r}")


def _result(what: str | None, error: AlpacaError | None, good: str = "ok") -> str:
    return f"{what} {good if error is None else type(error).__name__}"
