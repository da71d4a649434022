"""What the Kafka API answers to each request but Produce and Fetch, a file a noun."""
