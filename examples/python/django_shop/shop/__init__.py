"""A shop that sends an event for each order."""
