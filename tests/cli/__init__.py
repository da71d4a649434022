"""Tests of `alpacamq.cli`: the real command against a real broker."""
