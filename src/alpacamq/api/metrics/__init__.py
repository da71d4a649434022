"""Metrics of the broker in Prometheus' format."""
