"""What /metrics shows, one module for each part of the broker that it is collected from."""
