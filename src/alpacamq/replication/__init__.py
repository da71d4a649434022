"""Leader and follower of one replicated partition. Pure."""
