"""One hostile request at a time, and what another client waits meanwhile."""
