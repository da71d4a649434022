"""The kind `dead-letters`: analysis of dead-letter topics, and redrive."""
