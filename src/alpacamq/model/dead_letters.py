"""The names of dead-letter topics. Broker, APIs, client and pipelines all get them from here."""

from zlib import crc32

from .names import topic_beside
from .topics import INTERNAL_TOPICS, MAX_NAME_LENGTH

SUFFIX = ".dlq"
SETTING = "queue.dead.letter.topic"


def is_dead_letter_name(topic: str) -> bool:
    """Return whether a topic has the name that dead-letter topics get by default."""
    return topic.endswith(SUFFIX)


def default_dead_letter_topic(topic: str) -> str:
    """Return the dead-letter topic of a topic whose settings name none."""
    if len(topic) + len(SUFFIX) <= MAX_NAME_LENGTH:
        return topic + SUFFIX
    # Truncated; the checksum keeps names with a common prefix distinct.
    tag = f"-{crc32(topic.encode()):08x}{SUFFIX}"
    return topic[: MAX_NAME_LENGTH - len(tag)] + tag


def dead_letter_topic(topic: str, configured: str) -> str | None:
    """Return the topic that dead letters of a queue go to, None if its messages are never dead-lettered.

    `configured` is queue.dead.letter.topic as it applies to the queue: the override of its group, else the
    setting of the topic. Dead letters that fail again stay where they are.
    """
    if is_dead_letter_name(topic):
        return None
    if configured and configured not in INTERNAL_TOPICS:
        # Settings name topics of the same tenant.
        named = topic_beside(topic, configured)
        return None if named == topic else named
    return default_dead_letter_topic(topic)
