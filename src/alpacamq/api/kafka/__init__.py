"""The Kafka API: connections, requests and their answers in Kafka's wire protocol."""
