"""Tests of alpacamq.api.rest."""
