"""Deciding which staged writes count, and committing them."""
