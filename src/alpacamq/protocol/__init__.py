"""Kafka's wire format: error codes, framing, messages and their codecs. Pure; does no I/O."""
