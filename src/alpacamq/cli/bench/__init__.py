"""`alpacactl bench`: how fast a broker is, seen from here."""

import argparse

from alpacamq.cli.asking import add_verb, count, duration, topic_name, verbs_of
from alpacamq.cli.output import Output

_ACKS = ("none", "leader", "all")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_SIZE = 16 << 20
_MAX_CLIENTS = 256


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    produce = _verb(
        add_verb(
            verbs, common, "produce", "write as fast as it goes, or at a rate", _produce,
            [
                "alpacactl bench produce --messages 20000 --size 200 --clients 2",
                "alpacactl bench produce --rate 2000 --duration 1s --acks leader --compression lz4 -o json",
            ],
        ),
        batch=100,
    )  # fmt: skip
    consume = _verb(
        add_verb(
            verbs, common, "consume", "fill a topic and read it as fast as it goes", _consume,
            ["alpacactl bench consume --messages 50000"],
        ),
        batch=1000,
    )  # fmt: skip
    queue = _verb(
        add_verb(
            verbs, common, "queue", "receive and acknowledge messages of a queue", _queue,
            ["alpacactl bench queue --messages 500", "alpacactl bench queue --rate 200 --duration 1s"],
        ),
        batch=10,
    )  # fmt: skip
    latency = _verb(
        add_verb(
            verbs, common, "latency", "time messages from when they are due until they are read", _latency,
            ["alpacactl bench latency --rate 500 --duration 1s"],
        ),
        batch=1,
    )  # fmt: skip
    _add_rate(produce, queue, latency)
    consume.set_defaults(rate=None)
    produce.description = (
        "Write to a topic. With --rate, messages are due by a plan that does not wait for the broker, and "
        "times count from when they were due; without, each client sends when it has its answer."
    )
    consume.description = (
        "Read a topic from its start to what is its end now. Without --topic, one is made and filled first."
    )
    queue.description = (
        "Receive messages over HTTP and acknowledge them. Without --rate the queue is filled first and then "
        "emptied; with --rate messages are written at the same time, and timed from when they were due."
    )
    latency.description = (
        "Write messages one by one at a rate (default: 1000 a second) and read them at the same time. Times "
        "count from when a message was due, so that nothing that waits goes unnoticed."
    )


def _verb(verb: argparse.ArgumentParser, *, batch: int) -> argparse.ArgumentParser:
    verb.add_argument("--messages", type=count, metavar="N", help="stop after this many messages")
    verb.add_argument("--duration", type=duration, metavar="TIME", help="stop after this long")
    verb.add_argument(
        "--size", type=_size, default=100, metavar="BYTES", help="of a message's value (default: 100)"
    )
    verb.add_argument(
        "--clients", type=_clients, default=1, metavar="N", help="at the same time (default: 1)"
    )
    verb.add_argument(
        "--batch", type=count, default=batch, metavar="N", help=f"per request (default: {batch})"
    )
    verb.add_argument(
        "--acks", choices=_ACKS, default="all", help="whose acknowledgement counts (default: all)"
    )
    verb.add_argument("--compression", choices=_CODECS, default="none", help="of what is written")
    verb.add_argument(
        "--topic", type=topic_name, metavar="NAME", help="default: one that is made and deleted afterwards"
    )
    verb.add_argument(
        "--partitions", type=count, metavar="N", help="of a topic that is made (default: as clients)"
    )
    verb.add_argument("--keep", action="store_true", help="do not delete the topic that was made")
    return verb


def _add_rate(*verbs: argparse.ArgumentParser) -> None:
    for verb in verbs:
        verb.add_argument(
            "--rate", type=count, metavar="N", help="messages a second, of all clients together"
        )


def _size(text: str) -> int:
    # A message has room for the time it was due at.
    if not 8 <= (number := count(text)) <= _MAX_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} is not from 8 to {_MAX_SIZE}")
    return number


def _clients(text: str) -> int:
    if (number := count(text)) > _MAX_CLIENTS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {_MAX_CLIENTS}")
    return number


def _produce(parsed: argparse.Namespace, output: Output) -> None:
    from .runs import run_produce

    run_produce(parsed, output)


def _consume(parsed: argparse.Namespace, output: Output) -> None:
    from .runs import run_consume

    run_consume(parsed, output)


def _queue(parsed: argparse.Namespace, output: Output) -> None:
    from .runs import run_queue

    run_queue(parsed, output)


def _latency(parsed: argparse.Namespace, output: Output) -> None:
    from .runs import run_latency

    run_latency(parsed, output)
