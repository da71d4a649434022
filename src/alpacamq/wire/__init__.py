"""JSON values that the HTTP API sends and the HTTP client reads, each defined once."""
