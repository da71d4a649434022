"""Reads stored batches as records: block cache, lane index, backlog."""
