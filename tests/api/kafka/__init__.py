"""Tests of alpacamq.api.kafka."""
