"""Unmodified third-party clients against the real broker."""
