"""The real broker in operation: kills, full disks, hostile clients, restarts."""
