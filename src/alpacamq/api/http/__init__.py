"""HTTP/1.1 for the APIs that speak it: connections, their limits, requests and answers as values."""
