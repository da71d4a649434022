"""Reading topics as data frames: planning, offsets, record batches into Arrow columns."""
