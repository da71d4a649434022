"""Kafka's requests and responses, one file per noun. Field names are Kafka's, in snake case."""
