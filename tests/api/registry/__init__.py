"""Tests of alpacamq.api.registry."""
