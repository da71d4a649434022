"""Tests of credentials and access rules."""
