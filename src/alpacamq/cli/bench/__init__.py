"""`alpacactl bench`: measures the throughput and latency of a broker."""

import argparse

from alpacamq.cli.commands import add_verb, count, duration, topic_name, verbs_of
from alpacamq.cli.output import Output

_ACKS = ("none", "leader", "all")
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MAX_SIZE = 16 << 20
_MAX_CLIENTS = 256


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    produce = _verb(
        add_verb(
            verbs, common, "produce", "write at full speed or at a fixed rate", _produce,
            [
                "alpacactl bench produce --messages 20000 --size 200 --clients 2",
                "alpacactl bench produce --rate 2000 --duration 1s --acks leader --compression lz4 -o json",
            ],
        ),
        batch=100,
    )  # fmt: skip
    consume = _verb(
        add_verb(
            verbs, common, "consume", "fill a topic and read it at full speed", _consume,
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
            verbs, common, "latency",
                "measure messages from their scheduled time until they are "
                "read", _latency,
            ["alpacactl bench latency --rate 500 --duration 1s"],
        ),
        batch=1,
    )  # fmt: skip
    _add_rate(produce, queue, latency)
    consume.set_defaults(rate=None)
    produce.description = (
        "Write to a topic. With --rate, messages follow a schedule that does not wait for the broker, and "
        "latency is measured from the scheduled time; without it, each client sends after each response."
    )
    consume.description = (
        "Read a topic from its start to its current end. Without --topic, a temporary one is filled first."
    )
    queue.description = (
        "Receive messages over HTTP and acknowledge them. Without --rate the queue is filled first and then "
        "emptied; with --rate messages are written concurrently, and measured from their scheduled time."
    )
    latency.description = (
        "Write single messages at a rate (default: 1000 per second) and read them concurrently. Latency "
        "is measured from the scheduled time, so that queueing is included."
    )


def _verb(verb: argparse.ArgumentParser, *, batch: int) -> argparse.ArgumentParser:
    verb.add_argument("--messages", type=count, metavar="N", help="stop after this many messages")
    verb.add_argument("--duration", type=duration, metavar="TIME", help="stop after this time")
    verb.add_argument(
        "--size", type=_size, default=100, metavar="BYTES", help="size of a message's value (default: 100)"
    )
    verb.add_argument(
        "--clients", type=_clients, default=1, metavar="N", help="concurrent clients (default: 1)"
    )
    verb.add_argument(
        "--batch", type=count, default=batch, metavar="N", help=f"messages per request (default: {batch})"
    )
    verb.add_argument(
        "--acks", choices=_ACKS, default="all", help="acknowledgement to wait for (default: all)"
    )
    verb.add_argument("--compression", choices=_CODECS, default="none", help="compression of written batches")
    verb.add_argument("--topic", type=topic_name, metavar="NAME", help="default: a temporary topic")
    verb.add_argument(
        "--partitions", type=count, metavar="N", help="partitions of a temporary topic (default: as clients)"
    )
    verb.add_argument("--keep", action="store_true", help="keep the temporary topic")
    return verb


def _add_rate(*verbs: argparse.ArgumentParser) -> None:
    for verb in verbs:
        verb.add_argument(
            "--rate", type=count, metavar="N", help="messages per second, of all clients together"
        )


def _size(text: str) -> int:
    # A value must hold the scheduled time.
    if not 8 <= (number := count(text)) <= _MAX_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} must be from 8 to {_MAX_SIZE}")
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
