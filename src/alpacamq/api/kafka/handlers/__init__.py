"""What the Kafka door answers to each request but Produce and Fetch, a file a noun."""
