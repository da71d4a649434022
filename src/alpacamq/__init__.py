"""AlpacaMQ: a durable message broker that is a log and a queue at once, and its client.

    import alpacamq

    with alpacamq.connect("alpaca://localhost") as mq:
        mq.topic("orders").send(b"espresso")

Names of the client are imported when they are first used: the broker never loads them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpacamq import aio as aio
    from alpacamq import testing as testing
    from alpacamq.client.blocking import Client as Client
    from alpacamq.client.blocking import ForkedClient as ForkedClient
    from alpacamq.client.blocking import Job as Job
    from alpacamq.client.blocking import Topic as Topic
    from alpacamq.client.blocking import connect as connect
    from alpacamq.client.codecs import Codec as Codec
    from alpacamq.client.codecs import InvalidValue as InvalidValue
    from alpacamq.client.codecs import avro as avro
    from alpacamq.client.codecs import json as json
    from alpacamq.client.codecs import json_schema as json_schema
    from alpacamq.client.codecs import protobuf as protobuf
    from alpacamq.client.errors import BufferFull as BufferFull
    from alpacamq.client.errors import ClientError as ClientError
    from alpacamq.client.errors import Closed as Closed
    from alpacamq.client.errors import DeliveryTimedOut as DeliveryTimedOut
    from alpacamq.client.errors import LoginRefused as LoginRefused
    from alpacamq.client.errors import MemberFenced as MemberFenced
    from alpacamq.client.errors import NotAuthorized as NotAuthorized
    from alpacamq.client.errors import NotFound as NotFound
    from alpacamq.client.errors import ProducerFenced as ProducerFenced
    from alpacamq.client.errors import RecordRejected as RecordRejected
    from alpacamq.client.errors import Refused as Refused
    from alpacamq.client.errors import TransactionAborted as TransactionAborted
    from alpacamq.client.errors import Unreachable as Unreachable
    from alpacamq.client.messages import Message as Message
    from alpacamq.client.outcomes import AlreadySettled as AlreadySettled
    from alpacamq.client.outcomes import LeaseLost as LeaseLost
    from alpacamq.client.outcomes import Reject as Reject
    from alpacamq.client.outcomes import Retry as Retry
    from alpacamq.client.outcomes import SettlementError as SettlementError
    from alpacamq.client.outcomes import SettlementUnknown as SettlementUnknown
    from alpacamq.client.url import InvalidUrl as InvalidUrl
    from alpacamq.client.worker.app import Worker as Worker
    from alpacamq.model.errors import AlpacaError as AlpacaError

    __version__: str

_MODULES = {
    "client.blocking": ("Client", "ForkedClient", "Job", "Topic", "connect"),
    "client.codecs": ("Codec", "InvalidValue", "avro", "json", "json_schema", "protobuf"),
    "client.errors": (
        "BufferFull",
        "ClientError",
        "Closed",
        "DeliveryTimedOut",
        "LoginRefused",
        "MemberFenced",
        "NotAuthorized",
        "NotFound",
        "ProducerFenced",
        "RecordRejected",
        "Refused",
        "TransactionAborted",
        "Unreachable",
    ),
    "client.messages": ("Message",),
    "client.outcomes": (
        "AlreadySettled",
        "LeaseLost",
        "Reject",
        "Retry",
        "SettlementError",
        "SettlementUnknown",
    ),
    "client.url": ("InvalidUrl",),
    "client.worker.app": ("Worker",),
    "model.errors": ("AlpacaError",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("aio", "testing")

__all__ = ["__version__", "aio", "testing", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"alpacamq.{name}")
    if name == "__version__":
        return import_module("alpacamq.model.version").VERSION
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module 'alpacamq' has no attribute {name!r}")
    found = getattr(import_module(f"alpacamq.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
