"""A small blocking client of the Kafka protocol, for the command line and the Spark connector."""
