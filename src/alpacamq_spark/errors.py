"""Errors of a Spark job, worded for its user."""

from alpacamq.model.errors import AlpacaError


class InvalidOption(AlpacaError):
    """An option is unknown, missing, or has an invalid value."""


class InvalidColumns(AlpacaError):
    """Rows to write, or a schema to read into, have invalid columns."""


class DataLost(AlpacaError):
    """Records to read are gone; names the range."""


class ReadStalled(AlpacaError):
    """Records that should be readable do not become readable."""


class NewSchema(AlpacaError):
    """A record was written with a later version of its subject than the one that values are read as."""


class SinkFenced(AlpacaError):
    """Another query writes under this transactional id."""


class StagedWriteLost(AlpacaError):
    """A task's transaction was aborted before the driver could commit it."""


class InDoubt(AlpacaError):
    """It is unknown whether a batch was written, so the connector stops."""
