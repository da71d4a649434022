"""Where decisions meet disk and time: partitions, topics, durability, housekeeping.

One event loop owns every object here. Whatever blocks (fsync, recovery, compaction,
unpacking) runs in threads and comes back as an event.
"""
