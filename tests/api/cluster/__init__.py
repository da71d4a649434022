"""Tests of alpacamq.api.cluster."""
