"""How fast the broker is: one file per question, and what they share.

`python -m benchmarks` asks them all; see docs/guide/benchmarks.md.
"""
