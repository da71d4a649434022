"""Tests of the public Python client against real brokers."""
