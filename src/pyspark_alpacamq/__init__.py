"""Where Spark looks for the data source named `alpacamq`. Light: Spark imports it to see what is there."""

from alpacamq_spark.source import AlpacaSource as DefaultSource

__all__ = ["DefaultSource"]
