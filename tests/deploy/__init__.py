"""Tests of what is deployed beside the broker: rules for Prometheus, dashboards for Grafana."""
