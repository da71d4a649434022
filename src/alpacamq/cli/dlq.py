"""`alpacactl dlq`: dead letters, and moving them back to where they came from."""

import argparse
import re
import time
from typing import TYPE_CHECKING

from . import cells
from .asking import add_verb, count, index, reach_http, topic_name, verbs_of
from .output import Output, Table, moment, say
from .parsing import Declined
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.dead_letters import DeadLetter, Redrive

_PAUSE_S = 0.2
_ID = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")
_TOPIC_HELP = "the topic they come from, or the dead-letter topic itself"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "list", "list dead-letter topics and how many messages wait in each", _list,
        ["alpacactl dlq list"],
    )  # fmt: skip

    show = add_verb(
        verbs, common, "show", "show dead letters: where they came from, and why", _show,
        ["alpacactl dlq show orders --max 3", "alpacactl dlq show orders 0:0"],
    )  # fmt: skip
    show.add_argument("topic", type=topic_name, help=_TOPIC_HELP)
    show.add_argument(
        "id", nargs="?", type=_id, metavar="PARTITION:OFFSET", help="only this one, and all of it"
    )
    show.add_argument("--max", type=count, default=10, metavar="N", help="messages at most (default: 10)")

    redrive = add_verb(
        verbs, common, "redrive", "move dead letters back to where they came from", _redrive,
        [
            "alpacactl dlq redrive orders --to orders-by-hand --rate 10 --max 1",
            "alpacactl dlq redrive orders",
        ],
    )  # fmt: skip
    redrive.add_argument("topic", type=topic_name, help=_TOPIC_HELP)
    redrive.add_argument(
        "--to", type=topic_name, metavar="TOPIC", help="where to (default: each to where it came from)"
    )
    redrive.add_argument("--rate", type=count, metavar="N", help="messages a second (default: no limit)")
    redrive.add_argument("--max", type=count, metavar="N", help="stop after this many messages")
    redrive.add_argument(
        "--no-wait", action="store_true", help="return once it has begun; the broker goes on with it"
    )

    redrives = add_verb(
        verbs, common, "redrives", "list redrives under way and ended", _redrives,
        ["alpacactl dlq redrives", "alpacactl dlq redrives --topic orders.dlq -o json"],
    )  # fmt: skip
    redrives.add_argument(
        "--topic", type=topic_name, metavar="NAME", help="only those of this dead-letter topic"
    )

    cancel = add_verb(
        verbs, common, "cancel", "end a redrive; what it has moved stays moved", _cancel,
        ["alpacactl dlq cancel ID"],
    )  # fmt: skip
    cancel.add_argument("id", help="as `alpacactl dlq redrives` shows it")


def _id(text: str) -> tuple[int, int]:
    if (found := _ID.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PARTITION:OFFSET")
    return index(found[1]), int(found[2])


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.dead_letters import dead_letter_topics

    with reach_http(parsed) as api:
        found: list[dict[str, Plain]] = [
            {"topic": each.topic, "of": each.sources, "waiting": each.waiting}
            for each in dead_letter_topics(api)
        ]
    output.show(found, Table(["topic", "of", "waiting"], [list(each.values()) for each in found]))


def _show(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.dead_letters import dead_letter, dead_letters, find_dead_letter_topic
    from alpacamq.client.http.queues import MAX_MESSAGES

    from .record_forms import cell

    with reach_http(parsed) as api:
        topic = find_dead_letter_topic(api, parsed.topic)
        if parsed.id is not None:
            _show_whole(dead_letter(api, topic, *parsed.id), output)
            return
        found = dead_letters(api, topic, min(parsed.max, MAX_MESSAGES))
    output.show(
        [_plain(each) for each in found],
        Table(
            ["id", "dead", "from", "group", "deliveries", "reason", "key", "value"],
            [
                [
                    f"{each.place.partition}:{each.record.offset}",
                    cells.age(each.dead_lettered_ms),
                    _origin(each),
                    each.group,
                    each.delivery_count,
                    each.reason,
                    cell(each.record.key),
                    cell(each.record.value),
                ]
                for each in found
            ],
            title=topic,
        ),
    )


def _show_whole(letter: "DeadLetter", output: Output) -> None:
    from .record_forms import cell

    record = letter.record
    facts = {
        "id": f"{letter.place.partition}:{record.offset}",
        "topic": letter.place.topic,
        "from": _origin(letter),
        "written": None if letter.timestamp_ms is None else moment(letter.timestamp_ms),
        "dead-lettered": None if letter.dead_lettered_ms is None else moment(letter.dead_lettered_ms),
        "group": letter.group,
        "deliveries": letter.delivery_count,
        "reason": letter.reason,
        "key": cell(record.key),
        "size": cells.size(len(record.value or b"")),
    }
    output.show(
        _plain(letter),
        Table(["dead letter", ""], list(facts.items())),
        Table(["header", "value"], [[name, cell(value)] for name, value in record.headers], title="headers"),
        Table(["value"], [[cells.Cell(line)] for line in _value_lines(record.value)]),
    )


def _value_lines(value: bytes | None) -> list[str]:
    """All of a value: text line by line, and what is no text in base64."""
    from .record_forms import cell

    if value is None:
        return ["-"]
    try:
        return [cells.visible(line) for line in value.decode().split("\n")]
    except UnicodeDecodeError:
        return [cell(value) or ""]


def _redrive(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.dead_letters import find_dead_letter_topic, start_redrive

    with reach_http(parsed) as api:
        task = start_redrive(
            api,
            find_dead_letter_topic(api, parsed.topic),
            target=parsed.to,
            messages_per_second=parsed.rate,
            max_messages=parsed.max,
        )
        if not parsed.no_wait:
            task = _ended(api, task)
    output.done(_redrive_plain(task), _sentence(task))
    if task.failure:
        raise Declined(task.failure)


def _ended(api: "HttpApi", task: "Redrive") -> "Redrive":
    """The redrive once it is over, with its progress on standard error until then."""
    from alpacamq.client.http.dead_letters import redrive

    from .progress import ProgressBar

    bar = ProgressBar(f"redriving {task.source}", task.to_move)
    try:
        while task.is_running:
            time.sleep(_PAUSE_S)
            task = redrive(api, task.id)
            bar.at(task.moved)
    except KeyboardInterrupt:
        bar.end()
        say(f"the broker goes on with it; `alpacactl dlq cancel {task.id}` ends it")
        raise
    finally:
        bar.end()
    return task


def _redrives(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.dead_letters import redrives

    with reach_http(parsed) as api:
        found = redrives(api, parsed.topic)
    output.show(
        [_redrive_plain(each) for each in found],
        Table(
            ["id", "from", "to", "state", "started", "moved", "of", "failure"],
            [
                [
                    each.id,
                    each.source,
                    each.target,
                    cells.state(each.state),
                    cells.age(each.started),
                    each.moved,
                    each.to_move,
                    each.failure,
                ]
                for each in found
            ],
        ),
    )


def _cancel(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.dead_letters import cancel_redrive

    with reach_http(parsed) as api:
        task = cancel_redrive(api, parsed.id)
    output.done(_redrive_plain(task), _sentence(task))


def _sentence(task: "Redrive") -> str:
    return f"redrive {task.id} of {task.source}: {task.state}, {task.moved} of {task.to_move} moved"


def _redrive_plain(task: "Redrive") -> dict[str, Plain]:
    return {
        "id": task.id,
        "source": task.source,
        "target": task.target,
        "state": task.state,
        "started": moment(task.started),
        "moved": task.moved,
        "to_move": task.to_move,
        "messages_per_second": task.messages_per_second,
        "failure": task.failure or None,
    }


def _plain(letter: "DeadLetter") -> dict[str, Plain]:
    from .record_forms import plain

    return {
        **plain(letter.place, letter.record),
        "origin": {
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "time": None if letter.timestamp_ms is None else moment(letter.timestamp_ms),
            "group": letter.group,
        },
        "delivery_count": letter.delivery_count,
        "reason": letter.reason,
        "dead_lettered": None if letter.dead_lettered_ms is None else moment(letter.dead_lettered_ms),
    }


def _origin(letter: "DeadLetter") -> str | None:
    """TOPIC-PARTITION@OFFSET."""
    return None if letter.topic is None else f"{letter.topic}-{letter.partition}@{letter.offset}"
