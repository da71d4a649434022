"""Benchmarks of the broker: one file per question, and shared code.

`python -m benchmarks` runs them all; see docs/guide/benchmarks.md.
"""
