"""The Spark connector."""
