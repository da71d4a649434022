"""A small blocking client of the HTTP API."""
