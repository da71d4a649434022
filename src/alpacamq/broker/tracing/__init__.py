"""Records the steps of traced messages."""
