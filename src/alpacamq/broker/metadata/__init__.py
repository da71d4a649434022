"""The metadata of the cluster on this node: the Raft log on disk, the image, and the controller."""
