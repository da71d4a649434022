"""Tests of the asyncio clients for the log."""
