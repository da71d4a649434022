"""The Raft consensus of the metadata log. Pure."""
