"""Blocking clients for Kafka's wire protocol and, for features it does not cover, the HTTP API.

Functions are grouped by noun, one module each, and take the `Cluster` or the `HttpApi` to use.
"""
