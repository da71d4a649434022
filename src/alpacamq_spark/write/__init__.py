"""Writes data frames to topics: encodes rows as record batches and stages them in transactions."""
