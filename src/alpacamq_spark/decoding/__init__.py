"""Decodes keys and values that name their schema in a schema registry, into typed columns.

`layout` describes decoded values and how they become columns, `avro`, `json_values` and `protobuf` describe
those of the schema languages, `types` merges the types of several versions, and `values` decodes the records
of a task.
"""
