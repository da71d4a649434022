"""Rates and lag of the last hour, for charts."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import ConflictingInput
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.api.rest.timestamps import TimestampText, parse_epoch_ms
from alpacamq.broker.sampling import INTERVAL_S
from alpacamq.telemetry.history import SLOTS, Measure, SeriesKey

from .names import GroupText, TopicText

MAX_POINTS = SLOTS


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which series: those of a topic, a group or a measure, or by default of the whole broker."""

    topic: TopicText | UnsetType = UNSET
    group: GroupText | UnsetType = UNSET
    measure: Annotated[Measure, Meta(description="for all topics and groups")] | UnsetType = UNSET
    after: Annotated[TimestampText, Meta(description="only samples after this time")] | UnsetType = UNSET
    points: Annotated[int, Meta(ge=1, le=MAX_POINTS, description="maximum number; each is a mean")] = 300


class HistorySeries(msgspec.Struct, frozen=True, kw_only=True):
    """A time series. Rates are in messages per second; null is an unknown value."""

    measure: Measure
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    values: list[float | None]


class HistoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Series with common timestamps. The broker keeps one sample every `interval_ms`, for an hour."""

    interval_ms: int
    times: list[int]
    series: list[HistorySeries]


def history(call: Call[HistoryQuery, Nothing]) -> HistoryAnswer:
    query, kept = call.parameters, call.backend.broker.sampler.history
    keys = [key for key in kept.series() if _is_wanted(key, query)]
    after_ms = 0 if query.after is UNSET else _epoch_ms(query.after)
    found = kept.excerpt(keys, after_ms, query.points)
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
        raise ConflictingInput(f"after: invalid date {after}", "after") from None


def _is_wanted(key: SeriesKey, query: HistoryQuery) -> bool:
    if query.topic is query.group is query.measure is UNSET:
        return not key.topic
    return (
        query.topic in (UNSET, key.topic)
        and query.group in (UNSET, key.group)
        and query.measure in (UNSET, key.measure)
        and bool(key.topic)
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/history",
        summary="Show rates and lag of the last hour",
        handler=history,
        parameters=HistoryQuery,
        body=Nothing,
        answers=(HistoryAnswer,),
    ),
)
