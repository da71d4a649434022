"""Handlers of all Kafka requests except Produce, Fetch and those of share consumers."""
