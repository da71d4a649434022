"""Which characters SQS takes: those that XML 1.0 can carry."""

import re

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def has_forbidden(text: str) -> bool:
    """Whether a text holds a character that SQS takes in no message."""
    return _FORBIDDEN.search(text) is not None


def without_forbidden(text: str) -> str:
    """The text with a question mark in place of each character that XML cannot carry."""
    return _FORBIDDEN.sub("?", text)
