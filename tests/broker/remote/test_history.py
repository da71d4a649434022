"""Adding up the history of several brokers."""

import pytest

from alpacamq.broker.remote.history import NodeHistory, Numbers, ReadHistory, added_up
from alpacamq.telemetry.history import Measure, SeriesKey

PUBLISHED = SeriesKey(Measure.PUBLISHED, "orders")
LAG = SeriesKey(Measure.LAG, "orders", "g")


def history(times_ms: list[int], **series: Numbers) -> NodeHistory:
    keys = {"published": PUBLISHED, "lag": LAG}
    return NodeHistory(times_ms, [keys[name] for name in series], list(series.values()))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param(
            history([10_100, 12_100, 14_100], published=[1.0, 2.0, 3.0]),
            [11.0, 22.0, 33.0],
            id="near in time",
        ),
        pytest.param(history([], published=[]), [10.0, 20.0, 30.0], id="no sample yet"),
        pytest.param(history([14_100], published=[3.0]), [10.0, 20.0, 33.0], id="began later"),
        pytest.param(history([99_000], published=[3.0]), [10.0, 20.0, 30.0], id="far away in time"),
        pytest.param(
            history([10_000, 12_000, 14_000], published=[None, 2.0, None]), [10.0, 22.0, 30.0], id="unknown"
        ),
        pytest.param(
            history([5_000, 15_000], published=[1.0, 2.0]), [11.0, 22.0, 32.0], id="samples less often"
        ),
    ],
)
def test_samples_are_added_to_those_nearest_in_time(other: NodeHistory, expected: Numbers) -> None:
    own = history([10_000, 12_000, 14_000], published=[10.0, 20.0, 30.0])
    assert added_up(own, [other]).values == [expected]


def test_a_series_of_another_broker_is_shown() -> None:
    own = history([10_000, 12_000], published=[1.0, None])
    found = added_up(
        own, [history([10_001, 12_001], lag=[None, 7.0]), history([10_002, 12_002], lag=[5.0, 5.0])]
    )
    assert dict(zip(found.keys, found.values, strict=True)) == {
        PUBLISHED: [1.0, None],
        LAG: [5.0, 12.0],
    }


@pytest.mark.parametrize(
    ("request_", "key", "is_wanted"),
    [
        pytest.param(ReadHistory(), SeriesKey(Measure.LAG), True, id="the whole broker"),
        pytest.param(ReadHistory(), LAG, False, id="not of one topic"),
        pytest.param(ReadHistory(topic="orders"), LAG, True, id="of the topic"),
        pytest.param(ReadHistory(topic="others"), LAG, False, id="of another topic"),
        pytest.param(ReadHistory(measure=Measure.LAG), SeriesKey(Measure.LAG), False, id="by measure"),
    ],
)
def test_series_are_selected(request_: ReadHistory, key: SeriesKey, is_wanted: bool) -> None:
    assert request_.wants(key) is is_wanted
