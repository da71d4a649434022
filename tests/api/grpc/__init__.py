"""Tests of the gRPC API."""
