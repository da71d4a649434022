"""Small blocking clients, for Kafka's wire protocol and, where that has no words for it, the HTTP API.

Functions that belong to one noun live in its module and take the `Cluster` or the `HttpApi` they ask.
"""
