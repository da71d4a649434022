"""Kafka's messages, requests and responses, a file a noun. Field names are Kafka's, in snake case."""
