"""One partition on disk: segments, indexes, recovery, retention, compaction, producer state.

Synchronous; imports `model` only. `partition_log` is the way in.
"""
