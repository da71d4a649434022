"""Tests of Kafka's wire format."""
