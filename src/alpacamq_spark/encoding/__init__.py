"""Encodes columns as values of a schema registry: the reverse of `decoding`.

The driver chooses a version of the subject, or derives a schema from the columns and registers it. Tasks get
the schema from the driver, and encode whole Arrow batches without a request to the registry.
"""
