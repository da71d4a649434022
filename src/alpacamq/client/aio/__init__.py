"""Asyncio clients for the log, over Kafka's wire protocol.

A `Cluster` owns the connections; producers, readers, consumers and transactions work on one, and end
before it.
"""
