"""The cluster's metadata and the decisions that change it. Pure."""
