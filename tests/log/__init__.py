"""Tests of one partition on disk: what survives, what is found, what is refused."""
