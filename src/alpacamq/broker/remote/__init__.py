"""Calls to the partitions and state machines that other brokers lead."""
