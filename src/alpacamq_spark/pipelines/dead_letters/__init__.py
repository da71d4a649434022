"""The kind `dead-letters`: what lies in dead-letter topics, and redriving it."""
