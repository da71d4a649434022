"""Decides which staged writes are committed, and commits them."""
