"""Tests of the Raft core."""
