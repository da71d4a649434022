"""Tests of alpacamq.broker.peers."""
