"""Errors of pipelines, and the translation of Spark's errors to them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from alpacamq.client.errors import Unreachable
from alpacamq.model.errors import AlpacaError
from alpacamq_spark.errors import NewSchema


class InvalidPipeline(AlpacaError):
    """A pipeline file is invalid; names the file, the position in it and the reason."""


class PipelineBusy(AlpacaError):
    """Another process runs the same pipeline on the same checkpoint."""


class PipelineFailed(AlpacaError):
    """A run failed; says why."""


class ForeignArchive(AlpacaError):
    """A directory is not an archive, or belongs to another pipeline or checkpoint."""


class ForeignTable(AlpacaError):
    """A directory of Parquet files belongs to another checkpoint."""


class BadPlan(AlpacaError):
    """The state in a checkpoint does not match the pipeline or cannot be read."""


# The last line of a failed Python worker, which names the error.
_OURS = re.compile(r"^\s*(?:pyspark\S*: )?(alpacamq\w*(?:\.\w+)+)\.(\w+): (.+)$", re.MULTILINE)
# What a query says with raise_error.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_NO_CONNECTOR = re.compile(
    r"^ModuleNotFoundError: No module named '(?:alpacamq|alpacamq_spark)'", re.MULTILINE
)
_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_MAX_LENGTH = 600


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Turn Spark's errors into PipelineFailed, Unreachable if no broker answers, or NewSchema."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise translate_error(str(error)) from error
    except Exception as error:
        # JVM failures without a PySpark class are raised as py4j errors.
        if type(error).__module__.partition(".")[0] != "py4j":
            raise
        raise translate_error(str(error)) from error


@contextmanager
def condition(where: str) -> Iterator[None]:
    """Turn Spark's error about an invalid condition into InvalidPipeline, which names the position."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        yield
    except (AnalysisException, ParseException) as error:
        words = str(error).split("== SQL", maxsplit=1)[0].split(";\n", maxsplit=1)[0]
        raise InvalidPipeline(f"{where}: {' '.join(words.split())}") from None


def translate_error(text: str) -> AlpacaError:
    """Find our own error in the text of a Spark error."""
    found = list(_OURS.finditer(text))
    if found:
        _, name, message = found[-1].groups()
        known = (Unreachable, NewSchema)
        return next((kind for kind in known if kind.__name__ == name), PipelineFailed)(message)
    if (raised := _RAISED.search(text)) is not None:
        return PipelineFailed(raised[1])
    if _NO_CONNECTOR.search(text):
        return PipelineFailed(
            "the Python of the Spark workers has no AlpacaMQ: install it there, or set spark.package to the "
            "archive that `alpacactl pipeline package` builds"
        )
    if (other := _OTHER_PYTHON.search(text)) is not None:
        return PipelineFailed(other[1])
    return PipelineFailed(_first_words(text))


def _first_words(text: str) -> str:
    """Return the text before the stack trace and the plan."""
    lines = []
    for line in text.strip().splitlines():
        if line.startswith(("\tat ", "JVM stacktrace", "=== Streaming Query ===", "'Project", "+- ")):
            break
        if line.strip():
            lines.append(line.strip())
    words = " ".join(lines)
    return words if len(words) <= _MAX_LENGTH else f"{words[:_MAX_LENGTH]}…"
