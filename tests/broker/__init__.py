"""Tests of alpacamq.broker."""
