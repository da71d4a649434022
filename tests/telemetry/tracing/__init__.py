"""Tests of message tracing."""
