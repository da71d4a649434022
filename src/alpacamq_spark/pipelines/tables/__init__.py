"""Pipelines into tables of the lakehouse: Iceberg, through PyIceberg."""
