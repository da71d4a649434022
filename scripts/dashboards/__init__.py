"""The dashboards for Grafana as tables of panels, and how they become what Grafana imports."""
