"""Delayed messages: taking them in, delivering them when due, listing and cancelling them."""
