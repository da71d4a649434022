"""HTTP/1.1 server: connections, their limits, requests and responses as values."""
