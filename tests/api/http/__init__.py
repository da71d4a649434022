"""Tests of alpacamq.api.http."""
