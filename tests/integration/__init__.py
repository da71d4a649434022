"""The real broker as its operators meet it: kills, full disks, hostile clients, restarts."""
