"""Pipelines on Spark: files that say what is to become of topics, and running them.

`load("archive.toml").run()` does what `alpacactl pipeline run archive.toml` does.
"""

from .archive.table import read_archive
from .pipeline import Pipeline, load

__all__ = ["Pipeline", "load", "read_archive"]
