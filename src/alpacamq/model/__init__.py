"""The vocabulary every other package speaks: ids, record batches, topics, errors, ports.

Imports nothing of ours and does no I/O.
"""
