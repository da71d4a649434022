"""Tests of `alpacamq.client`."""
