"""Streams groups of KIP-1071: topology, internal topics, assignment of tasks."""
