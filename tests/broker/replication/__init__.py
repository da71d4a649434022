"""Replication between brokers: real logs, listeners and connections; one controller in memory."""
