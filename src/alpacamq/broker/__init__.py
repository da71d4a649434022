"""Runs the pure state machines and logs on asyncio, threads and a disk.

One event loop owns every object here. Blocking work (fsync, recovery, compaction, unpacking)
runs in threads and reports back to the loop.
"""
