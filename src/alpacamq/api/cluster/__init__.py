"""The cluster listener: accepts the connections of other nodes."""
