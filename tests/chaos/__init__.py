"""Faults against three real nodes under load, and a checker of what clients were promised."""
