"""Runs transcripts of queues: commands as text in, their outcome as text out."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from alpacamq.model.errors import AlpacaError
from alpacamq.model.lanes import parse_lane
from alpacamq.model.state_machine import Outcome, Reply, Request
from alpacamq.queues.messages import (
    Acquired,
    Action,
    ConfigureRequest,
    DescribeReply,
    ReceiveReply,
    ReceiveRequest,
    ResetRequest,
    Settlement,
    SettleReply,
    SettleRequest,
)

from .fake_log import Entry, FakeLog
from .queue_host import QUEUE, QueueHost, moves_of

_UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}


def duration_ms(text: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|min|h)", text)
    assert found is not None, f"{text} is no duration"
    return int(found[1]) * _UNITS_MS[found[2]]


def spoken(duration: int) -> str:
    for unit, unit_ms in reversed(_UNITS_MS.items()):
        if duration and duration % unit_ms == 0:
            return f"{duration // unit_ms}{unit}"
    return "0s"


def _in_short(names: list[str]) -> list[str]:
    """Abbreviate a1, a2, a3 as a1..a3."""
    short: list[str] = []
    for at, name in enumerate(names):
        stem, number = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
        follows = bool(number) and at > 0 and names[at - 1] == f"{stem}{int(number) - 1}"
        if follows and short:
            short[-1] = f"{short[-1].split('..')[0]}..{name}"
        else:
            short.append(name)
    return short


class _Host(QueueHost):
    """Reports outcomes as they happen."""

    report: Callable[[str], None]
    named: Callable[[int, int], str]
    on_delivery: Callable[[str, Acquired], None]

    def take(self, outcome: Outcome) -> None:
        super().take(outcome)
        for move in moves_of(outcome):
            where = move.target or "dead letters"
            why = f", as {move.reason}" if move.reason else ""
            name = self.named(move.partition, move.offset)
            self.report(f"to move: {name} to {where}{why}, after delivery {move.delivery_count}")

    def answer(self, request: Request[Any], reply: Reply) -> None:
        super().answer(request, reply)
        if isinstance(reply.answer, AlpacaError):
            self.report(f"{type(reply.answer).__name__}: {reply.answer}")
        elif isinstance(request, ReceiveRequest):
            assert isinstance(reply.answer, ReceiveReply)
            self.report(f"{request.consumer} <- {self._describe_reply(request, reply.answer)}")

    def _describe_reply(self, request: ReceiveRequest, answer: ReceiveReply) -> str:
        described = []
        for acquired in answer.messages:
            self.on_delivery(request.consumer, acquired)
            again = f" (delivery {acquired.delivery_count})" if acquired.delivery_count > 1 else ""
            described.append(self.named(acquired.partition, acquired.offset) + again)
        return ", ".join(_in_short(described)) or "nothing"


class Stage:
    """One queue, its messages by name, and their last receipts."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.host = _Host(self.log)
        self.host.report = self._report
        self.host.named = lambda partition, offset: self._names[partition, offset]
        self.host.on_delivery = self._note
        self._names: dict[tuple[int, int], str] = {}
        self._receipts: dict[tuple[str, str], Acquired] = {}
        self._lines: list[str] = []

    def act(self, command: str) -> str:
        """Run one command; return one line per outcome."""
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self._lines = []
        getattr(self, f"_{verb}")(plain, options)
        return "\n".join(self._lines)

    def _report(self, line: str) -> None:
        self._lines.append(line)

    def _note(self, consumer: str, acquired: Acquired) -> None:
        self._receipts[consumer, self._names[acquired.partition, acquired.offset]] = acquired

    def _topic(self, _plain: list[str], options: Mapping[str, str]) -> None:
        settings = dict(options)
        partitions = int(settings.pop("partitions", "1"))
        self.log.add(QUEUE.topic, settings, partitions=partitions)

    def _publish(self, names: list[str], options: Mapping[str, str]) -> None:
        """publish a b c lane=high key=k partition=0, or publish a count=40"""
        key = options["key"].encode() if "key" in options else None
        entry = Entry(parse_lane(options.get("lane", "normal")), key)
        partition = int(options.get("partition", "0"))
        every = names
        if "count" in options:
            every = [f"{names[0]}{i}" for i in range(1, int(options["count"]) + 1)]
        first = self.log.topics[QUEUE.topic].partitions[partition].end
        self._names |= {(partition, first + i): name for i, name in enumerate(every)}
        self.host.append(*[entry] * len(every), partition=partition)

    def _receive(self, plain: list[str], options: Mapping[str, str]) -> None:
        """receive c1 [runs] max=10 wait=20s lease=30s"""
        request = ReceiveRequest(
            queue=QUEUE,
            consumer=plain[0],
            max_messages=int(options.get("max", "10")),
            wait_ms=duration_ms(options["wait"]) if "wait" in options else 0,
            visibility_ms=duration_ms(options["lease"]) if "lease" in options else None,
            key_runs="runs" in plain,
        )
        self.host.send(request)

    def _settle(self, action: Action, plain: list[str], options: Mapping[str, str]) -> None:
        """ack c1 a b delay=5s reason=..."""
        consumer, *names = plain
        delay_ms = duration_ms(options["delay"]) if "delay" in options else None
        settlements = []
        for name in names:
            receipt = self._receipts[consumer, name]
            settlements.append(
                Settlement(
                    receipt.partition, receipt.offset, action, receipt.delivery_count, receipt.generation,
                    delay_ms=delay_ms, reason=options.get("reason", "").replace("_", " "),
                    target=options.get("to", ""),
                )
            )  # fmt: skip
        reply = self.host.ask(SettleRequest(queue=QUEUE, settlements=tuple(settlements)))
        assert isinstance(reply, SettleReply)
        for result in reply.results:
            if result is not None:
                self._report(f"{type(result).__name__}: {result}")

    def _ack(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.ACK, plain, options)

    def _nack(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.NACK, plain, options)

    def _reject(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.REJECT, plain, options)

    def _release(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.RELEASE, plain, options)

    def _undo(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.RELEASE_UNSEEN, plain, options)

    def _extend(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.EXTEND, plain, options)

    def _move(self, plain: list[str], options: Mapping[str, str]) -> None:
        self._settle(Action.MOVE, plain, options)

    def _moved(self, _plain: list[str], _options: Mapping[str, str]) -> None:
        """Perform all pending moves."""
        for move in self.host.perform_moves():
            self._report(f"moved: {self._names[move.partition, move.offset]} as number {move.sequence}")

    def _advance(self, plain: list[str], _options: Mapping[str, str]) -> None:
        self.host.advance(duration_ms(plain[0]))

    def _restart(self, _plain: list[str], _options: Mapping[str, str]) -> None:
        self.host.restart()

    def _compact(self, _plain: list[str], _options: Mapping[str, str]) -> None:
        self.host.compact()

    def _reset(self, plain: list[str], _options: Mapping[str, str]) -> None:
        """reset 0 12"""
        self.host.send(ResetRequest(queue=QUEUE, offsets={int(plain[0]): int(plain[1])}))

    def _configure(self, _plain: list[str], options: Mapping[str, str]) -> None:
        self.host.send(ConfigureRequest(queue=QUEUE, overrides=dict(options)))

    def _next(self, _plain: list[str], _options: Mapping[str, str]) -> None:
        """Report the next deadline of the engine."""
        due_ms = self.host.engine.next_deadline_ms
        self._report("nothing is due" if due_ms is None else f"in {spoken(due_ms - self.host.now_ms)}")

    def _describe(self, _plain: list[str], _options: Mapping[str, str]) -> None:
        reply: DescribeReply = self.host.describe()
        for one in reply.partitions:
            counts = f"{one.ready} ready, {one.in_flight} in flight, {one.backoff} in backoff"
            span = f"{one.start_offset}..{one.end_offset}"
            self._report(f"{one.partition}: {span}, {counts}, {one.dead_lettering} moving")
