"""The kind `archive`: topics as Parquet tables, and SQL over them."""
