"""Names of the record headers that carry what a record batch has no field for."""

# The lane a record is queued in: the name of a Lane.
LANE = "alpacamq-lane"
# When a record is to appear in its topic: milliseconds since 1970 as decimal text.
DELIVER_AT = "alpacamq-deliver-at"
# An id given to a message before it has an offset.
MESSAGE_ID = "alpacamq-message-id"

# Where a dead letter came from and why it is one.
ORIGIN_TOPIC = "alpacamq-origin-topic"
ORIGIN_PARTITION = "alpacamq-origin-partition"
ORIGIN_OFFSET = "alpacamq-origin-offset"
ORIGIN_TIMESTAMP = "alpacamq-origin-timestamp"
ORIGIN_GROUP = "alpacamq-origin-group"
DELIVERY_COUNT = "alpacamq-delivery-count"
DEAD_LETTER_REASON = "alpacamq-dead-letter-reason"
DEAD_LETTERED_AT = "alpacamq-dead-lettered-at"

DEAD_LETTER_HEADERS = frozenset(
    {
        ORIGIN_TOPIC,
        ORIGIN_PARTITION,
        ORIGIN_OFFSET,
        ORIGIN_TIMESTAMP,
        ORIGIN_GROUP,
        DELIVERY_COUNT,
        DEAD_LETTER_REASON,
        DEAD_LETTERED_AT,
    }
)
