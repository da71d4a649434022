"""The HTTP API: topics, messages, groups, queues and transactions as JSON."""
