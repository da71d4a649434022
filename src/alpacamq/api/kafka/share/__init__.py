"""Share groups over the Kafka API: ShareFetch, ShareAcknowledge and their sessions."""
