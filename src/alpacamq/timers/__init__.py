"""Delayed messages as a state machine: the timer wheel, what is spilled to disk, and the records of both."""
