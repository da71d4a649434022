"""InitProducerId: an identity for an idempotent or transactional producer."""

from typing import Annotated

from alpacamq.protocol.notation import Int16, Int32, Int64, Message, String, since


class InitProducerIdRequest(Message, flexible_from=2):
    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1


class InitProducerIdResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
