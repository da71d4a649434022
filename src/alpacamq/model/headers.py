"""Names of record headers for data that a record batch has no field for."""

# The lane a record is queued in: the name of a Lane.
LANE = "alpacamq-lane"
# The delivery time of a record: milliseconds since 1970 as decimal text.
DELIVER_AT = "alpacamq-deliver-at"
# An id assigned to a message before it has an offset.
MESSAGE_ID = "alpacamq-message-id"

# SQS: the deduplication id of a message in a FIFO queue; of a delayed message also the time it was sent
# and, in a FIFO queue, its sequence number.
DEDUPLICATION_ID = "sqs-deduplication-id"
SENT_TIMESTAMP = "sqs-sent-timestamp"
SEQUENCE_NUMBER = "sqs-sequence-number"
# Marks a message with a deduplication id that a redrive has moved: its sender has sent it long before.
IS_REDRIVEN = "sqs-is-redriven"

# Origin of a dead letter and the reason for it.
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
