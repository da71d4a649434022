"""Tests of the queue engine and of delays, as pure state machines."""
