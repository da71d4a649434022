"""The leader of a partition: validation, appends, group commit, recovery, housekeeping."""
