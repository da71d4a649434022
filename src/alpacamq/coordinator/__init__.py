"""Groups, offsets and transactions as state machines: an event and the time in, records and replies out.

Pure. The host appends the records to an internal topic and sends the replies once they are durable.
"""
