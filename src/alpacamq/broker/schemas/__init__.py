"""Checks of records by the schema registry."""
