"""Rates and lag of the last hour, for charts."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.metrics.history import INTERVAL_S, SLOTS, Measure, SeriesKey
from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.rest.timestamps import TimestampText, parse_epoch_ms

from .names import GroupText, TopicText

MAX_POINTS = SLOTS


class HistoryWanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which series: those of a topic, a group or a measure, or of the whole broker where none is named."""

    topic: TopicText | UnsetType = UNSET
    group: GroupText | UnsetType = UNSET
    measure: Annotated[Measure, Meta(description="of every topic and group there is")] | UnsetType = UNSET
    after: Annotated[TimestampText, Meta(description="only what came after")] | UnsetType = UNSET
    points: Annotated[int, Meta(ge=1, le=MAX_POINTS, description="at most; each is a mean")] = 300


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """One number over time. Rates are in messages a second; null is where nothing is known."""

    measure: Measure
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    values: list[float | None]


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Series that share their moments. The broker takes a number every `interval_ms`, for an hour."""

    interval_ms: int
    times: list[int]
    series: list[HistorySeries]


def history(call: Call[HistoryWanted, Nothing]) -> HistoryAnswer:
    wanted, kept = call.parameters, call.backend.history
    keys = [key for key in kept.series() if _is_wanted(key, wanted)]
    after_ms = 0 if wanted.after is UNSET else _epoch_ms(wanted.after)
    found = kept.excerpt(keys, after_ms, wanted.points)
    return HistoryAnswer(
        interval_ms=int(INTERVAL_S * 1000),
        times=found.times_ms,
        series=[
            HistorySeries(
                measure=key.measure, topic=key.topic or UNSET, group=key.group or UNSET, values=values
            )
            for key, values in zip(keys, found.values, strict=True)
        ],
    )


def _epoch_ms(after: str) -> int:
    try:
        return parse_epoch_ms(after)
    except ValueError:
        raise ConflictingInput(f"after: there is no {after}", "after") from None


def _is_wanted(key: SeriesKey, wanted: HistoryWanted) -> bool:
    if wanted.topic is wanted.group is wanted.measure is UNSET:
        return not key.topic
    return (
        wanted.topic in (UNSET, key.topic)
        and wanted.group in (UNSET, key.group)
        and wanted.measure in (UNSET, key.measure)
        and bool(key.topic)
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/history",
        summary="Rates and lag of the last hour",
        handler=history,
        parameters=HistoryWanted,
        body=Nothing,
        answers=(HistoryAnswer,),
    ),
)
