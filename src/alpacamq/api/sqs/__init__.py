"""The SQS API: AWS SDKs work with queues by changing the endpoint."""
