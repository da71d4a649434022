"""Handlers of the HTTP API, one module per noun, with their routes at the end."""
