"""The schema registry's HTTP API, compatible with Confluent's."""
