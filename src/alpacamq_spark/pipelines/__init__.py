"""Pipelines on Spark: definition files, and running them.

`load("archive.toml").run()` is the same as `alpacactl pipeline run archive.toml`.
"""

from .archive.table import read_archive
from .pipeline import Pipeline, load

__all__ = ["Pipeline", "load", "read_archive"]
