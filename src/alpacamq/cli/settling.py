"""`alpacactl queue ack|nack|reject|extend`: what becomes of received messages, by their receipts."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from .asking import add_verb, duration, reach_http
from .output import Output, say
from .parsing import Declined

if TYPE_CHECKING:
    from .yaml import Plain

_FROM_INPUT = "-"


def add_settling(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    """The verbs that take receipts."""
    ack = add_verb(
        verbs, common, "ack", "acknowledge messages: they are done", partial(_settle, "ack", "acknowledged"),
        [
            "alpacactl queue ack RECEIPT",
            "alpacactl queue receive orders --max 1 -o json | jq -r .receipt | alpacactl queue ack -",
        ],
    )  # fmt: skip
    nack = add_verb(
        verbs, common, "nack", "give messages back that failed, to be tried again after a rest",
        partial(_settle, "nack", "given back"),
        ["alpacactl queue nack RECEIPT --delay 5m --reason 'till is closed'"],
    )  # fmt: skip
    nack.add_argument(
        "--delay", type=duration, metavar="TIME", help="rest this long (default: the queue's backoff)"
    )
    reject = add_verb(
        verbs, common, "reject", "set messages aside as dead letters", partial(_settle, "reject", "rejected"),
        ["alpacactl queue reject RECEIPT --reason 'no such product'"],
    )  # fmt: skip
    for verb in (nack, reject):
        verb.add_argument("--reason", metavar="TEXT", help="kept with the message if it is a dead letter")
    extend = add_verb(
        verbs, common, "extend", "keep messages longer", partial(_settle, "extend", "extended"),
        ["alpacactl queue extend RECEIPT --for 5m"],
    )  # fmt: skip
    extend.add_argument(
        "--for", dest="timeout", type=duration, required=True, metavar="TIME",
        help="from now on; 0s gives them back at once",
    )  # fmt: skip
    for verb in (ack, nack, reject, extend):
        verb.add_argument(
            "receipts", nargs="+", metavar="receipt", help="or - to read them from standard input, one a line"
        )


def _settle(action: str, done: str, parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.queues import Settle, settle

    wanted = {
        "delay_ms": getattr(parsed, "delay", None),
        "reason": getattr(parsed, "reason", None),
        "timeout_ms": getattr(parsed, "timeout", None),
    }
    details = {name: value for name, value in wanted.items() if value is not None}
    settled = 0
    failed: list[dict[str, Plain]] = []
    with reach_http(parsed) as api:
        for receipt, failure in settle(api, Settle[action.upper()], _receipts(parsed), **details):
            if failure is None:
                settled += 1
            else:
                failed.append({"receipt": receipt, "error": str(failure)})
    what = f"{settled} {'message' if settled == 1 else 'messages'}"
    output.done({"settled": settled, "failed": failed}, f"{done}: {what}")
    if failed:
        for each in failed[1:]:
            say(f"{each['receipt']}: {each['error']}")
        raise Declined(f"{failed[0]['receipt']}: {failed[0]['error']}")


def _receipts(parsed: argparse.Namespace) -> Iterator[str]:
    for each in parsed.receipts:
        if each == _FROM_INPUT:
            yield from filter(None, (line.strip() for line in sys.stdin))
        else:
            yield each
