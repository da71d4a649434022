"""`alpacactl delayed`: lists, shows and cancels delayed messages."""

import argparse
import re
from itertools import islice
from typing import TYPE_CHECKING

from . import cells
from .commands import add_confirmation, add_verb, confirm, connect_http, count, index, topic_name, verbs_of
from .output import Output, Table, print_message, timestamp_text
from .parsing import UsageError
from .yaml import Plain

if TYPE_CHECKING:
    from alpacamq.wire.messages import DelayedMessage

_ID = re.compile(r"([0-9]{1,9}):([0-9]{1,18})")


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    lists = add_verb(
        verbs, common, "list", "list delayed messages", _list,
        ["alpacactl delayed list", "alpacactl delayed list orders --max 1000 -o json"],
    )  # fmt: skip
    lists.add_argument("topic", type=topic_name, nargs="?", help="default: all topics")
    lists.add_argument("--partition", type=index, metavar="N", help="only this partition of the topic")
    lists.add_argument(
        "--max", type=count, default=100, metavar="N", help="maximum number of messages (default: 100)"
    )

    show = add_verb(
        verbs, common, "show", "show a delayed message", _show, ["alpacactl delayed show orders 0:17"]
    )
    show.add_argument("topic", type=topic_name)
    show.add_argument("id", type=_id, help="as shown by `alpacactl delayed list`")

    cancel = add_verb(
        verbs, common, "cancel", "cancel delayed messages: they are never delivered", _cancel,
        ["alpacactl delayed cancel orders 0:17 --yes"],
    )  # fmt: skip
    cancel.add_argument("topic", type=topic_name)
    cancel.add_argument("ids", nargs="+", type=_id, metavar="id", help="as shown by `alpacactl delayed list`")
    add_confirmation(cancel)


def _id(text: str) -> tuple[int, int]:
    if (found := _ID.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} must have the form PARTITION:NUMBER")
    return int(found[1]), int(found[2])


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.messages import all_delayed_messages, delayed_messages

    if parsed.topic is None and parsed.partition is not None:
        raise UsageError("--partition needs a topic")
    with connect_http(parsed) as api:
        messages = (
            all_delayed_messages(api)
            if parsed.topic is None
            else delayed_messages(api, parsed.topic, parsed.partition)
        )
        found = list(islice(messages, parsed.max + 1))
    of_topic = [] if parsed.topic is not None else ["topic"]
    listed = [_plain(each) for each in found[: parsed.max]]
    output.show(
        listed,
        Table(
            [*of_topic, "id", "due", "deliver at", "scheduled", "size"],
            [
                [
                    *([each.topic] if of_topic else []),
                    f"{each.partition}:{each.id}",
                    cells.age(each.deliver_at),
                    timestamp_text(each.deliver_at),
                    cells.age(each.scheduled),
                    cells.size(each.size_bytes),
                ]
                for each in found[: parsed.max]
            ],
        ),
    )
    if len(found) > parsed.max:
        print_message(f"there are more than {parsed.max} messages; use --max to show more")


def _show(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.messages import delayed_message

    with connect_http(parsed) as api:
        found = delayed_message(api, parsed.topic, *parsed.id)
    key, value = (
        None if content is None else content.decode(errors="replace")
        for content in (found.key_base64, found.value_base64)
    )
    plain = {**_plain(found), "key": key, "value": value}
    output.show(plain, Table(["field", "value"], [[name, text] for name, text in plain.items()]))


def _cancel(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.messages import cancel

    wanted = ", ".join(f"{partition}:{number}" for partition, number in parsed.ids)
    confirm(parsed, f"cancel delayed messages of {parsed.topic} ({wanted})")
    with connect_http(parsed) as api:
        cancelled = [_plain(cancel(api, parsed.topic, *each)) for each in parsed.ids]
    output.done({"cancelled": cancelled}, f"cancelled {wanted}")


def _plain(message: "DelayedMessage") -> dict[str, Plain]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "id": f"{message.partition}:{message.id}",
        "deliver_at": timestamp_text(message.deliver_at),
        "deliver_at_ms": message.deliver_at,
        "scheduled": timestamp_text(message.scheduled),
        "size_bytes": message.size_bytes,
    }
