"""Tests of leader and follower."""
