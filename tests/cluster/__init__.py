"""Tests of alpacamq.cluster."""
