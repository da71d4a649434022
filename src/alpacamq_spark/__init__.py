"""AlpacaMQ for Apache Spark: the connector `format("alpacamq")` and the pipelines built on it."""
