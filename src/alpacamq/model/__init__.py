"""Types shared by every other package: ids, record batches, topics, errors, ports.

Imports no other package of AlpacaMQ and does no I/O.
"""
