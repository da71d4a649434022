"""The web console: pages for people, which ask the JSON API for everything they show."""
