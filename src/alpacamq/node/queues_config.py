"""The section of queue mode."""

from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.topics import INT32_MAX, MIB
from alpacamq.queues.limits import EngineLimits

KIB = 1 << 10
TIB = 1 << 40
_LIMITS = EngineLimits()


class QueuesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[queues]: topics used as queues."""

    max_queues: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Groups that use topics as queues, in each of the 8 parts they are spread over.",
        ),
    ] = _LIMITS.max_queues
    max_waiting_receives: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Receives that wait for messages at once, in each of the 8 parts; more are refused.",
        ),
    ] = _LIMITS.max_waiting_receives
    max_indexed_runs: Annotated[
        int,
        Meta(
            ge=100,
            le=INT32_MAX,
            description="How far ahead of its consumers a queue knows the lanes of a partition: "
            "runs of neighbouring messages of one lane.",
        ),
    ] = _LIMITS.max_indexed_runs
    max_blocked_messages: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="How many messages a queue in key order reads ahead to find keys that are free.",
        ),
    ] = _LIMITS.max_blocked_messages
    cache_bytes: Annotated[
        int,
        Meta(ge=64 * KIB, le=TIB, description="Memory for the batches that queues deliver messages from."),
    ] = 32 * MIB
