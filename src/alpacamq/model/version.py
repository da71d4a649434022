"""The version of AlpacaMQ."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

VERSION = "0.1.0"


def is_compiled() -> bool:
    """Return whether the modules that every message passes are compiled."""
    queues = Path(__file__).parent.parent / "queues"
    return any((queues / f"engine{suffix}").exists() for suffix in EXTENSION_SUFFIXES)


def described() -> str:
    """Return the version for people."""
    return f"{VERSION} (compiled)" if is_compiled() else VERSION
