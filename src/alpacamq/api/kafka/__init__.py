"""The Kafka door: connections, requests and their answers in Kafka's wire protocol."""
