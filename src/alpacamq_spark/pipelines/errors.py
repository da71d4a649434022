"""What can be wrong with a pipeline, in words for whoever wrote it or runs it."""

from alpacamq.model.errors import AlpacaError


class InvalidPipeline(AlpacaError):
    """A pipeline file cannot be used; names the file, the place in it and what is wrong."""


class PipelineBusy(AlpacaError):
    """Another process runs the same pipeline on the same checkpoint."""


class PipelineFailed(AlpacaError):
    """A run ended before it was done; says why."""


class ForeignArchive(AlpacaError):
    """A directory is no archive, or one that belongs to another pipeline or checkpoint."""


class ForeignTable(AlpacaError):
    """A directory of Parquet files belongs to another checkpoint."""


class BadPlan(AlpacaError):
    """What a checkpoint holds does not fit the pipeline or cannot be read."""
