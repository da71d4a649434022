"""The stats of the broker: what /metrics shows, and the history of the last hour."""
