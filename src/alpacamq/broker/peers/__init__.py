"""Connections to the other nodes of the cluster: handshake, frames, calls and links."""
