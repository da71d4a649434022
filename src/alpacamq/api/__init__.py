"""The APIs: each translates its protocol, delegates to the broker and translates the answer."""
