"""Delayed messages: accepts, delivers, lists and cancels them."""
