"""Grafana dashboards as tables of panels, and their rendering to JSON."""
