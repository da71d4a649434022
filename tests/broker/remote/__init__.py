"""Calls to partitions and state machines of other brokers."""
