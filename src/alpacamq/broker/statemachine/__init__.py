"""Hosts state machines on the partitions of internal topics."""
