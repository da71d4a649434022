"""The kind `analytics`: throughput, sizes, key skew and latency of topics."""
