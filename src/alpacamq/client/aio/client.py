"""The client: topics and transactions of a cluster."""

from typing import Any, TypeVar, overload

from alpacamq.client.codecs import BytesCodec, Codec, codec_of
from alpacamq.client.connect import parse_addresses
from alpacamq.client.messages import Codecs, KeyCodec
from alpacamq.client.outcomes import Duration, duration_ms
from alpacamq.client.url import InvalidUrl, Token, parse_url

from .session import Session
from .topic import Topic, TopicTransaction

T = TypeVar("T")


class Client(Session):
    """A client of a cluster. Its topics share connections."""

    @overload
    def topic(self, name: str, *, key: type[Any] | Codec[Any] | None = None) -> Topic[bytes]: ...

    @overload
    def topic(self, name: str, *, value: Codec[T], key: type[Any] | Codec[Any] | None = None) -> Topic[T]: ...

    @overload
    def topic(self, name: str, *, value: type[T], key: type[Any] | Codec[Any] | None = None) -> Topic[T]: ...

    def topic(
        self,
        name: str,
        *,
        value: type[Any] | Codec[Any] | None = None,
        key: type[Any] | Codec[Any] | None = None,
    ) -> Topic[Any]:
        """Return a topic whose values are of a type: bytes by default.

        A type is bytes, str, a msgspec Struct, a dataclass, a pydantic model, a generated Protobuf class, or
        whatever else msgspec reads from JSON. A codec is `alpacamq.json`, `avro(subject)`,
        `json_schema(subject)` or `protobuf(subject)`, or your own. Without `key`, keys are
        bytes, str or int, and read as bytes.
        """
        return self.topic_with(name, codecs_of(value, key))

    def topic_with(self, name: str, codecs: Codecs[T]) -> Topic[T]:
        """Return a topic with these codecs."""
        if not name:
            raise ValueError("a topic needs a name")
        return Topic(self, name, codecs)

    def transaction(self, transactional_id: str, *, timeout: Duration = 60.0) -> TopicTransaction:
        """Return a transaction: `async with mq.transaction("tx-1") as tx: await tx.send(topic, …)`.

        It commits at the end of the block, and aborts if the block raises. A transactional id belongs to one
        process at a time: a later one takes it over, and earlier ones get ProducerFenced.
        """
        return TopicTransaction(self, transactional_id, timeout)


def codecs_of(value: type[Any] | Codec[Any] | None, key: type[Any] | Codec[Any] | None) -> Codecs[Any]:
    """Return the codecs of a topic by types or codecs of its values and keys."""
    return Codecs(
        BytesCodec() if value is None else codec_of(value), KeyCodec() if key is None else codec_of(key)
    )


def connect(
    url: str = "alpaca://localhost",
    *,
    token: Token | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    kafka: str | None = None,
    client_id: str = "alpacamq",
    timeout: Duration = 30.0,
) -> Client:
    """Return a client, to be used as `async with connect(url) as mq:`.

    The URL is `alpaca://[user:password@]host[:port][,host2…]`, with `alpacas://` for TLS; the port is that of
    the gRPC API, 9095 by default. `token` is an API key (`amq_…`), a JSON Web Token, or a function that
    returns one. `ca`, `certificate` and `key` are PEM files. `kafka` replaces the addresses of the Kafka API
    that the cluster names, if clients have to use others. `timeout` is how long a call may take with retries.
    """
    target = parse_url(url, token=token, ca=ca, certificate=certificate, key=key)
    try:
        addresses = () if kafka is None else parse_addresses(kafka)
    except ValueError as error:
        raise InvalidUrl(f"kafka: {error}") from None
    return Client(target, kafka=addresses, client_id=client_id, timeout_s=duration_ms(timeout) / 1000)
