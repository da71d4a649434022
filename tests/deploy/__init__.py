"""Tests of deploy/: rules for Prometheus, dashboards for Grafana."""
