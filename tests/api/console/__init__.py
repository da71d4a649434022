"""Tests of the web console: its files over HTTP, and its pages in a real browser."""
