"""The web console: static pages that use the HTTP API."""
