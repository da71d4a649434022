"""Tests of the queue engine, a pure state machine."""
