"""Tests of alpacamq.api.sqs."""
