"""Tests of alpacamq.api."""
