"""Queue mode as state machines: deliveries, leases, lanes, dead letters, and messages that wait. Pure."""
