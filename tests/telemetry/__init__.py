"""Tests of `alpacamq.telemetry`."""
