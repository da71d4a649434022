"""Replication of partitions between brokers: follows leaders, and keeps in-sync sets up to date."""
