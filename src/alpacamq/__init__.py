"""AlpacaMQ: a durable message broker that is a log and a queue at once."""

__version__ = "0.1.0"
