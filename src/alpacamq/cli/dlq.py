"""`alpacactl dlq`: shows dead letters and redrives them."""

import argparse
import re
import time
from typing import TYPE_CHECKING

from . import cells
from .commands import add_verb, connect_http, count, index, topic_name, verbs_of
from .output import Output, Table, print_message, timestamp_text
from .parsing import CommandError
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.client.http.queues import DeadLetter
    from alpacamq.wire.queues import RedriveDescription

_PAUSE_S = 0.2
_ID = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")
_TOPIC_HELP = "the original topic, or the dead-letter topic itself"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "list", "list dead-letter topics and their message counts", _list,
        ["alpacactl dlq list"],
    )  # fmt: skip

    show = add_verb(
        verbs, common, "show", "show dead letters with origin and reason", _show,
        ["alpacactl dlq show orders --max 3", "alpacactl dlq show orders 0:0"],
    )  # fmt: skip
    show.add_argument("topic", type=topic_name, help=_TOPIC_HELP)
    show.add_argument(
        "id", nargs="?", type=_id, metavar="PARTITION:OFFSET", help="show all of this message only"
    )
    show.add_argument(
        "--max", type=count, default=10, metavar="N", help="maximum number of messages (default: 10)"
    )

    redrive = add_verb(
        verbs, common, "redrive", "move dead letters back to their original topics", _redrive,
        [
            "alpacactl dlq redrive orders --to orders-by-hand --rate 10 --max 1",
            "alpacactl dlq redrive orders",
        ],
    )  # fmt: skip
    redrive.add_argument("topic", type=topic_name, help=_TOPIC_HELP)
    redrive.add_argument(
        "--to",
        type=topic_name,
        metavar="TOPIC",
        help="target topic (default: the original topic of each message)",
    )
    redrive.add_argument("--rate", type=count, metavar="N", help="messages per second (default: no limit)")
    redrive.add_argument("--max", type=count, metavar="N", help="stop after this many messages")
    redrive.add_argument(
        "--no-wait", action="store_true", help="return immediately; the redrive continues in the broker"
    )

    redrives = add_verb(
        verbs, common, "redrives", "list running and finished redrives", _redrives,
        ["alpacactl dlq redrives", "alpacactl dlq redrives --topic orders.dlq -o json"],
    )  # fmt: skip
    redrives.add_argument(
        "--topic", type=topic_name, metavar="NAME", help="only those of this dead-letter topic"
    )

    cancel = add_verb(
        verbs, common, "cancel", "cancel a redrive; messages already moved stay moved", _cancel,
        ["alpacactl dlq cancel ID"],
    )  # fmt: skip
    cancel.add_argument("id", help="as shown by `alpacactl dlq redrives`")


def _id(text: str) -> tuple[int, int]:
    if (found := _ID.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} must have the form PARTITION:OFFSET")
    return index(found[1]), int(found[2])


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import dead_letter_topics

    with connect_http(parsed) as api:
        found: list[dict[str, Plain]] = [
            {"topic": each.topic, "of": each.sources, "waiting": each.waiting}
            for each in dead_letter_topics(api)
        ]
    output.show(found, Table(["topic", "of", "waiting"], [list(each.values()) for each in found]))


def _show(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import MAX_MESSAGES, dead_letter, dead_letters, find_dead_letter_topic

    from .record_forms import cell

    with connect_http(parsed) as api:
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
        "written": None if letter.timestamp_ms is None else timestamp_text(letter.timestamp_ms),
        "dead-lettered": None if letter.dead_lettered_ms is None else timestamp_text(letter.dead_lettered_ms),
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
    """Return a whole value: text line by line, other bytes as base64."""
    from .record_forms import cell

    if value is None:
        return ["-"]
    try:
        return [cells.printable(line) for line in value.decode().split("\n")]
    except UnicodeDecodeError:
        return [cell(value) or ""]


def _redrive(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import find_dead_letter_topic, start_redrive

    with connect_http(parsed) as api:
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
        raise CommandError(task.failure)


def _ended(api: "HttpApi", task: "RedriveDescription") -> "RedriveDescription":
    """Wait for the redrive to end, and show its progress on standard error."""
    from alpacamq.client.http.queues import redrive

    from .progress import ProgressBar

    bar = ProgressBar(f"redriving {task.source}", task.to_move)
    try:
        while task.is_running:
            time.sleep(_PAUSE_S)
            task = redrive(api, task.id)
            bar.at(task.moved)
    except KeyboardInterrupt:
        bar.end()
        print_message(f"the redrive continues in the broker; `alpacactl dlq cancel {task.id}` cancels it")
        raise
    finally:
        bar.end()
    return task


def _redrives(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import redrives

    with connect_http(parsed) as api:
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
    from alpacamq.client.http.queues import cancel_redrive

    with connect_http(parsed) as api:
        task = cancel_redrive(api, parsed.id)
    output.done(_redrive_plain(task), _sentence(task))


def _sentence(task: "RedriveDescription") -> str:
    return f"redrive {task.id} of {task.source}: {task.state}, {task.moved} of {task.to_move} moved"


def _redrive_plain(task: "RedriveDescription") -> dict[str, Plain]:
    return {
        "id": task.id,
        "source": task.source,
        "target": task.target,
        "state": task.state,
        "started": timestamp_text(task.started),
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
            "time": None if letter.timestamp_ms is None else timestamp_text(letter.timestamp_ms),
            "group": letter.group,
        },
        "delivery_count": letter.delivery_count,
        "reason": letter.reason,
        "dead_lettered": None if letter.dead_lettered_ms is None else timestamp_text(letter.dead_lettered_ms),
    }


def _origin(letter: "DeadLetter") -> str | None:
    """Format the origin as TOPIC-PARTITION@OFFSET."""
    return None if letter.topic is None else f"{letter.topic}-{letter.partition}@{letter.offset}"
