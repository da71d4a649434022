"""Errors of the clients: no broker answers, or the broker answers with an error.

Every error says by `retriable` whether the same call can succeed later without a change of its arguments.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from alpacamq.model.errors import AlpacaError

# Re-exported as part of Refused.
from alpacamq.protocol.error_codes import ErrorCode as ErrorCode
from alpacamq.protocol.errors import ProtocolError

T = TypeVar("T")

_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        # A new leader does not know yet how far its followers are.
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        # Offsets of a transaction that has not ended yet.
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        # Brokers of the cluster are missing, or do not answer the one that was asked.
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)


class ClientError(AlpacaError):
    """Base of the errors of the clients."""

    @property
    def retriable(self) -> bool:
        """Whether the same call can succeed later."""
        return False


class UnusableCertificate(ClientError):
    """A file of certificates or keys of this client cannot be used."""


class Unreachable(ClientError):
    """No broker answers at an address, or it stopped answering; the message says what to check."""

    @property
    def retriable(self) -> bool:
        return True


class Untrusted(Unreachable):
    """The certificate of a broker is not accepted."""

    @property
    def retriable(self) -> bool:
        return False


class Closed(ClientError):
    """The client, producer or consumer is closed."""


class BufferFull(ClientError):
    """The buffer of a producer has no room for a record, which was not accepted."""

    @property
    def retriable(self) -> bool:
        return True


class RecordTooLarge(ClientError):
    """A record is larger than the largest request of a producer."""


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged in time. If `is_sent`, it may have been written nevertheless."""

    def __init__(self, message: str, *, topic: str, partition: int, is_sent: bool) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.is_sent = is_sent

    @property
    def retriable(self) -> bool:
        return not self.is_sent


class DelaysDisabled(ClientError):
    """A topic without message.delays=true ignores the delivery time of a record."""


class NotFound(ClientError):
    """An object does not exist; the message suggests similar names."""

    def __init__(self, kind: str, name: str, known: Iterable[str] = ()) -> None:
        from difflib import get_close_matches  # not needed by programs that go well

        near = get_close_matches(name, list(known), n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        super().__init__(f"there is no {kind} {name!r}{hint}")


class Refused(ClientError):
    """The broker answered with an error: its Kafka name, and the topic and partition it is about."""

    def __init__(
        self,
        about: str,
        code: int,
        message: str | None = None,
        *,
        topic: str | None = None,
        partition: int | None = None,
    ) -> None:
        try:
            self.code = ErrorCode(code)
            self.name = self.code.name
        except ValueError:
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
            self.name = f"error {code}"
        self.topic = topic
        self.partition = partition
        super().__init__(f"{about}: {self.name}{f': {message}' if message else ''}")

    @property
    def retriable(self) -> bool:
        """Whether the error is transient and the request can be retried."""
        return self.code in _PASSING


class LoginRefused(Refused):
    """The broker does not accept the user, its password, key or token, or the mechanism."""


class NotAuthorized(Refused):
    """The user may not do this."""


class ProducerFenced(Refused):
    """Another producer with the same transactional id has taken over."""


class SequenceLost(Refused):
    """The broker has forgotten what came before a batch that may have been written; it was not sent again."""


class MemberFenced(Refused):
    """The coordinator has removed this consumer from its group; its partitions may have other owners."""


class OffsetOutOfRange(Refused):
    """A partition has no records at the requested offset."""


class RecordRejected(Refused):
    """The broker does not accept a batch of records: too large, invalid, or against a schema."""


class TransactionAborted(ClientError):
    """The transaction cannot be committed and was or must be aborted."""


_TYPES: Mapping[ErrorCode, type[Refused]] = {
    ErrorCode.SASL_AUTHENTICATION_FAILED: LoginRefused,
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: LoginRefused,
    ErrorCode.ILLEGAL_SASL_STATE: LoginRefused,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.PRODUCER_FENCED: ProducerFenced,
    ErrorCode.INVALID_PRODUCER_EPOCH: ProducerFenced,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: SequenceLost,
    ErrorCode.UNKNOWN_PRODUCER_ID: SequenceLost,
    ErrorCode.FENCED_MEMBER_EPOCH: MemberFenced,
    ErrorCode.UNKNOWN_MEMBER_ID: MemberFenced,
    ErrorCode.STALE_MEMBER_EPOCH: MemberFenced,
    ErrorCode.FENCED_INSTANCE_ID: MemberFenced,
    ErrorCode.ILLEGAL_GENERATION: MemberFenced,
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.MESSAGE_TOO_LARGE: RecordRejected,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordRejected,
    ErrorCode.CORRUPT_MESSAGE: RecordRejected,
    ErrorCode.INVALID_RECORD: RecordRejected,
    ErrorCode.INVALID_TIMESTAMP: RecordRejected,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: RecordRejected,
}


def refusal(
    about: str,
    code: int,
    message: str | None = None,
    *,
    topic: str | None = None,
    partition: int | None = None,
) -> Refused:
    """Return the error of a response, of the type that its code has."""
    kind = _TYPES.get(code, Refused)  # type: ignore[call-overload]
    error: Refused = kind(about, code, message, topic=topic, partition=partition)
    return error


def only(about: str, answers: Sequence[T]) -> T:
    """Return the single result of a response; ProtocolError if there are none or several."""
    if len(answers) != 1:
        raise ProtocolError(f"{about}: expected one result, got {len(answers)}")
    return answers[0]


def check(about: str, code: int, message: str | None = None) -> None:
    """Raise Refused if the error code is not 0; `about` is the operation."""
    if code != ErrorCode.NONE:
        raise refusal(about, code, message)
