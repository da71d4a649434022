"""A small blocking client for Kafka's wire protocol: connections, administration, producing, consuming.

Functions that belong to one noun live in its module and take the `Cluster` they ask.
"""
