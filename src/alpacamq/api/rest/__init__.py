"""The HTTP/JSON API: topics, messages, groups, queues and transactions for any HTTP client."""
