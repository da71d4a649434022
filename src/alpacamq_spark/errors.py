"""What can go wrong for a Spark job, in words for whoever runs it."""

from alpacamq.model.errors import AlpacaError


class InvalidOption(AlpacaError):
    """An option is unknown, missing, or has a value that makes no sense."""


class InvalidColumns(AlpacaError):
    """Rows to be written, or a schema to be read into, have columns that cannot be used."""


class DataLost(AlpacaError):
    """Records that were to be read are gone; names the range."""


class ReadStalled(AlpacaError):
    """Records that were announced do not become readable."""


class SinkFenced(AlpacaError):
    """Another query writes under this transactional id."""


class StagedWriteLost(AlpacaError):
    """What a task had written was dropped before the driver could commit it."""


class InDoubt(AlpacaError):
    """Whether a batch was written cannot be told any more, so nothing is done rather than something wrong."""
