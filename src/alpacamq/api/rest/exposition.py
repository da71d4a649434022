"""Metrics as text in Prometheus' format."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = Mapping[str, str]


class Kind(StrEnum):
    """Whether a number only grows."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Exposition:
    """Collects metrics, each with all its samples at once."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(
        self, kind: Kind, name: str, description: str, samples: Iterable[tuple[Labels, float | None]]
    ) -> None:
        """One metric; a sample without a number is left out."""
        lines = [f"{name}{_labelled(labels)} {number}" for labels, number in samples if number is not None]
        if lines:
            self._lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *lines]

    def gauge(self, name: str, description: str, number: float | None) -> None:
        self.add(Kind.GAUGE, name, description, [({}, number)])

    def counter(self, name: str, description: str, number: float | None) -> None:
        self.add(Kind.COUNTER, name, description, [({}, number)])

    def encode(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"
