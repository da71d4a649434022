"""Pipelines into tables of the lakehouse: Iceberg, through PyIceberg, and Delta, through delta-rs."""
