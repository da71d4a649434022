"""What the cluster knows of itself, and the decisions that change it. Pure."""
