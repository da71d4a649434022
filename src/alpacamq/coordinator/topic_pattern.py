"""The patterns members subscribe with."""

import re

from alpacamq.model.errors import InvalidRegularExpression

MAX_LENGTH = 256


class TopicPattern:
    """A regular expression that whole topic names match or do not."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidRegularExpression(
                f"a pattern may have {MAX_LENGTH} characters, this one has {len(text)}"
            )
        try:
            self._compiled = re.compile(text)
        except re.error as error:
            raise InvalidRegularExpression(f"{text!r} is not a regular expression: {error}") from None

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None
