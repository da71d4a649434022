"""JSON in options: parsed with an error that shows where it is wrong."""

import json
from typing import Any

from alpacamq.model.ids import TopicName, TopicPartition

from .errors import InvalidOption

_SHOWN = 60
_AROUND = 20


def parse_json(option: str, text: str, example: str) -> Any:
    """The value of an option that holds JSON, or InvalidOption."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        around = text[max(0, error.pos - _AROUND) : error.pos + _AROUND]
        raise InvalidOption(
            f"{option} is not JSON: {error.msg} at character {error.pos + 1}, near {around!r}; "
            f"it looks like {example}"
        ) from None


def parse_by_partition(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    """A number for each partition, from {"topic":{"0":number}}, or InvalidOption."""
    parsed = parse_json(option, text, example)
    if not isinstance(parsed, dict):
        raise InvalidOption(f"{option} is an object of topics, like {example}, not {show(parsed)}")
    found: dict[TopicPartition, int] = {}
    for topic, numbers in parsed.items():
        if not isinstance(numbers, dict):
            raise InvalidOption(
                f"{option}: {topic!r} has {show(numbers)} where partitions belong, like {example}"
            )
        for partition, number in numbers.items():
            if not (partition.isascii() and partition.isdigit()):
                raise InvalidOption(f"{option}: {partition!r} is not a partition of {topic!r}")
            if not isinstance(number, int) or isinstance(number, bool) or not -2 <= number < 2**63:
                raise InvalidOption(
                    f"{option}: {topic}-{partition} has {show(number)}, which is not a number"
                )
            found[TopicPartition(TopicName(topic), int(partition))] = number
    return dict(sorted(found.items()))


def show(value: Any) -> str:
    """A parsed value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
