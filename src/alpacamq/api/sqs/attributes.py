"""Queue attributes: their names, valid values, and the topic settings that store them.

Attributes that correspond to a topic setting are stored there, so that every API sees the same queue; the
others are stored as JSON in the setting sqs.attributes.
"""

from collections.abc import Mapping

import msgspec

from alpacamq.model.topics import TopicConfig

from .errors import INVALID_ATTRIBUTE_NAME, INVALID_ATTRIBUTE_VALUE, Fault, has_forbidden

KIB = 1024
MAX_VISIBILITY_S = 12 * 3600
MAX_DELAY_S = 15 * 60
MAX_WAIT_S = 20
MAX_RETENTION_S = 14 * 24 * 3600
MIN_MESSAGE_BYTES = KIB
MAX_MESSAGE_BYTES = 1024 * KIB
MAX_IN_FLIGHT = 120_000
MAX_DIGITS = 20  # digits of a number, including leading zeros
# A batch of one message is larger than the size that SQS counts: by its frame, by our headers (the types of
# ten attributes with their names are most of that), and by the headers of a dead letter.
MESSAGE_OVERHEAD_BYTES = 16 * KIB


class StoredAttributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of the setting sqs.attributes. Times are in seconds; 0 if another API created the topic."""

    created: int = 0
    modified: int = 0
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}

    @classmethod
    def of(cls, config: TopicConfig) -> "StoredAttributes":
        """Parse the setting; invalid values written by other clients are ignored."""
        try:
            stored = msgspec.json.decode(config.sqs_attributes or "{}", type=cls)
        except msgspec.DecodeError:
            return cls()
        fitting = {name: text for name, text in stored.attributes.items() if _fits(name, text)}
        return msgspec.structs.replace(stored, attributes=fitting)

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()


class Number(msgspec.Struct, frozen=True):
    """A whole number within bounds."""

    minimum: int
    maximum: int

    def fits(self, text: str) -> bool:
        if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS):
            return False
        return self.minimum <= int(text) <= self.maximum

    @property
    def reason(self) -> str:
        return f"Must be a number from {self.minimum} to {self.maximum}."


class Word(msgspec.Struct, frozen=True):
    """One of several words."""

    choices: tuple[str, ...]

    def fits(self, text: str) -> bool:
        return text in self.choices

    @property
    def reason(self) -> str:
        return f"Must be {' or '.join(self.choices)}."


class JsonObject(msgspec.Struct, frozen=True):
    """A JSON object; empty text removes the attribute."""

    max_bytes: int

    def fits(self, text: str) -> bool:
        if not text:
            return True
        try:
            return len(text) <= self.max_bytes and isinstance(msgspec.json.decode(text), dict)
        except (msgspec.DecodeError, RecursionError):
            return False

    @property
    def reason(self) -> str:
        return f"Must be a JSON object of at most {self.max_bytes} characters."


class Text(msgspec.Struct, frozen=True):
    """Text that is stored and ignored; empty text removes the attribute."""

    max_bytes: int

    def fits(self, text: str) -> bool:
        return len(text) <= self.max_bytes

    @property
    def reason(self) -> str:
        return f"Must have at most {self.max_bytes} characters."


class Boolean(msgspec.Struct, frozen=True):
    """True or false, in any case."""

    def fits(self, text: str) -> bool:
        return text.isascii() and text.lower() in ("true", "false")

    @property
    def reason(self) -> str:
        return "Must be true or false."


_BOOLEAN = Boolean()
_POLICY = JsonObject(8192)

RULES: Mapping[str, Number | Word | Boolean | JsonObject | Text] = {
    "DelaySeconds": Number(0, MAX_DELAY_S),
    "MaximumMessageSize": Number(MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": Number(60, MAX_RETENTION_S),
    "VisibilityTimeout": Number(0, MAX_VISIBILITY_S),
    "ReceiveMessageWaitTimeSeconds": Number(0, MAX_WAIT_S),
    "Policy": _POLICY,
    "RedrivePolicy": _POLICY,
    "RedriveAllowPolicy": _POLICY,
    "KmsMasterKeyId": Text(2048),
    "KmsDataKeyReusePeriodSeconds": Number(60, 24 * 3600),
    "SqsManagedSseEnabled": _BOOLEAN,
    "FifoQueue": _BOOLEAN,
    "ContentBasedDeduplication": _BOOLEAN,
    "DeduplicationScope": Word(("queue", "messageGroup")),
    "FifoThroughputLimit": Word(("perQueue", "perMessageGroupId")),
}
FIFO_ONLY = frozenset({"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"})
# Attributes of a queue that were not set. SQS would report "true" for the last of the first line, but
# nothing is encrypted here.
DEFAULTS = {"ReceiveMessageWaitTimeSeconds": "0", "SqsManagedSseEnabled": "false"}
FIFO_DEFAULTS = {
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
# Defaults of a new queue, and further settings of its topic. Without a RedrivePolicy, messages are never
# dead-lettered.
NEW_QUEUE = {
    "DelaySeconds": "0",
    "MaximumMessageSize": str(MAX_MESSAGE_BYTES),
    "MessageRetentionPeriod": str(4 * 24 * 3600),
    "VisibilityTimeout": "30",
}
NEW_TOPIC = {"queue.max.deliveries": "0", "queue.max.in.flight.total": str(MAX_IN_FLIGHT)}
NEW_FIFO_TOPIC = {**NEW_TOPIC, "queue.ordering": "key"}
IN_SETTINGS = frozenset(NEW_QUEUE)
# Defaults of attributes that are shown only if they were set.
HIDDEN_DEFAULTS = {"KmsDataKeyReusePeriodSeconds": "300"}


def _fits(name: str, text: str) -> bool:
    rule = RULES.get(name)
    return rule is not None and rule.fits(text) and not has_forbidden(text)


def _invalid(name: str) -> Fault:
    return Fault(
        INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}. Reason: {RULES[name].reason}"
    )


def normalized(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return attributes with booleans in lower case, as they are stored."""
    return {
        name: text.lower() if RULES.get(name) is _BOOLEAN and _BOOLEAN.fits(text) else text
        for name, text in attributes.items()
    }


def check(attributes: Mapping[str, str], *, is_fifo: bool) -> None:
    """Refuse unknown attributes, those of the other queue type, and invalid values."""
    for name, text in attributes.items():
        if name not in RULES:
            raise Fault(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:100]}.")
        if RULES[name] is _BOOLEAN and not _BOOLEAN.fits(text):
            # First: an invalid FifoQueue does not make the attribute unknown.
            raise _invalid(name)
        if name in FIFO_ONLY and not is_fifo:
            raise Fault(
                INVALID_ATTRIBUTE_NAME,
                f"You can specify the {name} only when FifoQueue is set to true."
                if name in ("DeduplicationScope", "FifoThroughputLimit")
                else f"Unknown Attribute {name}.",
            )
        if not _fits(name, text):
            raise _invalid(name)


def check_together(attributes: Mapping[str, str]) -> None:
    """Refuse invalid combinations of attributes."""
    if attributes.get("KmsMasterKeyId") and attributes.get("SqsManagedSseEnabled") == "true":
        raise Fault(
            INVALID_ATTRIBUTE_NAME,
            "You can use one type of server-side encryption (SSE) at one time. "
            "You can either enable KMS SSE or SQS SSE.",
        )
    per_group = attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    if per_group and attributes.get("DeduplicationScope") != "messageGroup":
        raise Fault(
            INVALID_ATTRIBUTE_VALUE,
            "FifoThroughputLimit can be perMessageGroupId only where DeduplicationScope is messageGroup.",
        )


def topic_settings(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the topic settings that store attributes."""
    settings: dict[str, str] = {}
    for name in IN_SETTINGS & attributes.keys():
        number = int(attributes[name])
        match name:
            case "DelaySeconds":
                settings["queue.delay.ms"] = str(number * 1000)
            case "MaximumMessageSize":
                settings["max.message.bytes"] = str(number + MESSAGE_OVERHEAD_BYTES)
            case "VisibilityTimeout":
                settings["queue.visibility.timeout.ms"] = str(number * 1000)
            case "MessageRetentionPeriod":
                # Segments are deleted with some delay; queue.ttl.ms is exact.
                settings["retention.ms"] = settings["queue.ttl.ms"] = str(number * 1000)
    return settings


def max_message_bytes(config: TopicConfig) -> int:
    """Return the maximum message size of a topic as SQS counts it."""
    return min(max(config.max_message_bytes - MESSAGE_OVERHEAD_BYTES, MIN_MESSAGE_BYTES), MAX_MESSAGE_BYTES)


def from_settings(config: TopicConfig) -> dict[str, str]:
    """Return the attributes that topic settings store."""
    return {
        "DelaySeconds": str(config.queue_delay_ms // 1000),
        "MaximumMessageSize": str(max_message_bytes(config)),
        "MessageRetentionPeriod": str(
            config.retention_ms // 1000 if config.retention_ms >= 0 else MAX_RETENTION_S
        ),
        "VisibilityTimeout": str(config.queue_visibility_timeout_ms // 1000),
    }
