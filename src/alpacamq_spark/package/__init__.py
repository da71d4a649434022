"""The archive with which a Spark cluster runs the connector without AlpacaMQ on its workers.

`build` writes it, `cluster` has the settings of a session that uses it, and `on_workers` is what checks
Python and platform where it is unpacked.
"""
