"""The kind `replay`: a range of an archive or of topics, written to a topic exactly once."""
