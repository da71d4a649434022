"""The APIs: each translates requests of its protocol, calls the broker and translates the result."""
