"""What the JSON API does at each path, a file a noun; each has its routes at the end."""
