"""Measures the processor time of work that servers with different settings do in turns."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from . import topics, wire
from .clients import Load
from .servers import Server
from .session import Session
from .usage import Meter, Usage
from .writers import pipelined

SIZE = 100
COST = "s of server CPU per million messages"

# Does the work on its own topic at a server; returns messages and seconds.
Work = Callable[[Server, str], tuple[int, float]]


class Sample(NamedTuple):
    """One unit of work."""

    messages: int
    seconds: float
    server_cpu_ns: int
    usage: Usage

    @property
    def cost_s(self) -> float:
        return self.server_cpu_ns / self.messages / 1000


def seconds_of_small(session: Session) -> int:
    """Return how long requests of one message are sent for a sample."""
    return session.scaled(3, 2)


def small(session: Session) -> Work:
    """Return work with one message per request, pipelined on 4 connections."""
    seconds = seconds_of_small(session)

    def work(server: Server, topic: str) -> tuple[int, float]:
        request = wire.produce_request(topic, 0, wire.one_record_batch(SIZE), acks=1)
        answer_bytes = wire.produce_response_bytes(topic)
        done = pipelined(server.address, request, answer_bytes, connections=4, depth=256, seconds=seconds)
        return done.requests, done.wall_s

    return work


def batch_load(session: Session, topic: str) -> Load:
    """Return the number of messages for a sample of batches."""
    return Load(topic=topic, partitions=1, size=SIZE, count=session.scaled(4_000_000, 1_000_000))


def batches(session: Session) -> Work:
    """Return work with batches of the fastest client."""

    def work(server: Server, topic: str) -> tuple[int, float]:
        load = batch_load(session, topic)
        return load.count, session.clients[-1].produce(server.address, load, "all")

    return work


def sample(session: Session, server: Server, work: Work, topic: str) -> Sample:
    """Run once, when the machine is idle."""
    topics.create(server.address, topic, 1)
    session.settle()
    began_s, began_ns = time.monotonic(), cpu_ns(server.pid)
    with Meter(server.pid) as meter:
        messages, seconds = work(server, topic)
    wall_s, spent_ns = time.monotonic() - began_s, cpu_ns(server.pid) - began_ns
    topics.delete(server.address, topic)
    return Sample(messages, seconds, spent_ns, meter.usage.over(wall_s))


def cpu_ns(pid: int) -> int:
    """Return the processor time of a process in nanoseconds; differences are a few per cent."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def middle_half(ratios: list[float]) -> list[float]:
    """Return the mean without the outer quarters: a burst of other load affects only one of a pair."""
    quarter = len(ratios) // 4
    kept = sorted(ratios)[quarter : len(ratios) - quarter]
    assert median(kept) == median(ratios)
    return kept
