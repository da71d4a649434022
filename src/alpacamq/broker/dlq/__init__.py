"""Dead-letter topics: writing to them, and redrive."""
