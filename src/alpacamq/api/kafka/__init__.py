"""The Kafka API: connections, requests and responses in Kafka's wire protocol."""
