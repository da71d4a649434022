"""Writing data frames to topics: rows into record batches, staged in transactions."""
