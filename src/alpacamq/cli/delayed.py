"""`alpacactl delayed`: messages that wait for their time."""

import argparse
import re
from itertools import islice
from typing import TYPE_CHECKING

from . import cells
from .asking import (
    add_confirmation,
    add_verb,
    confirm,
    count,
    index,
    reach_http,
    topic_name,
    verbs_of,
)
from .output import Output, Table, moment, say
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.client.http.delayed import DelayedMessage

_ID = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    lists = add_verb(
        verbs, common, "list", "list messages that wait for their time", _list,
        ["alpacactl delayed list orders", "alpacactl delayed list orders --max 1000 -o json"],
    )  # fmt: skip
    lists.add_argument("topic", type=topic_name)
    lists.add_argument("--partition", type=index, metavar="N", help="only this partition")
    lists.add_argument("--max", type=count, default=100, metavar="N", help="messages at most (default: 100)")

    cancel = add_verb(
        verbs, common, "cancel", "cancel messages that wait: they are never delivered", _cancel,
        ["alpacactl delayed cancel orders 0:17 --yes"],
    )  # fmt: skip
    cancel.add_argument("topic", type=topic_name)
    cancel.add_argument("ids", nargs="+", type=_id, metavar="id", help="as `alpacactl delayed list` shows it")
    add_confirmation(cancel)


def _id(text: str) -> tuple[int, int]:
    if (found := _ID.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form PARTITION:NUMBER")
    return int(found[1]), int(found[2])


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.delayed import delayed_messages

    with reach_http(parsed) as api:
        found = list(islice(delayed_messages(api, parsed.topic, parsed.partition), parsed.max + 1))
    listed = [_plain(each) for each in found[: parsed.max]]
    output.show(
        listed,
        Table(
            ["id", "due", "deliver at", "scheduled", "size"],
            [
                [
                    f"{each.partition}:{each.id}",
                    cells.age(each.deliver_at),
                    moment(each.deliver_at),
                    cells.age(each.scheduled),
                    cells.size(each.size_bytes),
                ]
                for each in found[: parsed.max]
            ],
        ),
    )
    if len(found) > parsed.max:
        say(f"there are more than {parsed.max}; --max shows more")


def _cancel(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.delayed import cancel

    wanted = ", ".join(f"{partition}:{number}" for partition, number in parsed.ids)
    confirm(parsed, f"cancel messages that wait for {parsed.topic} ({wanted})")
    with reach_http(parsed) as api:
        cancelled = [_plain(cancel(api, parsed.topic, *each)) for each in parsed.ids]
    output.done({"cancelled": cancelled}, f"cancelled {wanted}")


def _plain(message: "DelayedMessage") -> dict[str, Plain]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "id": f"{message.partition}:{message.id}",
        "deliver_at": moment(message.deliver_at),
        "deliver_at_ms": message.deliver_at,
        "scheduled": moment(message.scheduled),
        "size_bytes": message.size_bytes,
    }
