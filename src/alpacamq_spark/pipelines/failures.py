"""Errors of Spark in a few words: ours are found inside, and the rest is cut to what it says first."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from alpacamq.client.errors import Unreachable
from alpacamq.model.errors import AlpacaError

from .errors import InvalidPipeline, PipelineFailed

# How a Python worker's last line names the error that ended it.
_OURS = re.compile(r"^\s*(?:pyspark\S*: )?(alpacamq\w*(?:\.\w+)+)\.(\w+): (.+)$", re.MULTILINE)
_MAX_LENGTH = 600


@contextmanager
def explained() -> Iterator[None]:
    """Turn what Spark raises into PipelineFailed, or Unreachable where no broker answers."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise explanation(str(error)) from error
    except Exception as error:
        # Failures in the JVM that PySpark has no words for come as they are.
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise explanation(str(error)) from error


@contextmanager
def condition(where: str) -> Iterator[None]:
    """Turn what Spark says of a condition that makes no sense into InvalidPipeline, which names the place."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        words = str(error).split("== SQL", maxsplit=1)[0].split(";\n", maxsplit=1)[0]
        raise InvalidPipeline(f"{where}: {' '.join(words.split())}") from None


def explanation(text: str) -> AlpacaError:
    """The error that a text of Spark's stands for."""
    found = list(_OURS.finditer(text))
    if found:
        _, name, message = found[-1].groups()
        return Unreachable(message) if name == Unreachable.__name__ else PipelineFailed(message)
    return PipelineFailed(_first_words(text))


def _first_words(text: str) -> str:
    """What stands before the stack trace and the plan."""
    lines = []
    for line in text.strip().splitlines():
        if line.startswith(("\tat ", "JVM stacktrace", "=== Streaming Query ===", "'Project", "+- ")):
            break
        if line.strip():
            lines.append(line.strip())
    words = " ".join(lines)
    return words if len(words) <= _MAX_LENGTH else f"{words[:_MAX_LENGTH]}…"
