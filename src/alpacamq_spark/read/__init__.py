"""Reads topics as data frames: planning, offsets, decoding record batches into Arrow columns."""
