"""State machines of groups, offsets and transactions: an event and the time in, records and replies out.

Pure. The host appends the records to an internal topic and sends the replies once they are durable.
"""
