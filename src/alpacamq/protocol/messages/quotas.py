"""DescribeClientQuotas and AlterClientQuotas: limits of users, client ids and addresses (KIP-546)."""

from collections.abc import Sequence

from alpacamq.protocol.notation import Bool, ErrorText, Float64, Int8, Int16, Int32, Message, String


class ComponentData(Message):
    entity_type: String = ""
    match_type: Int8 = 0
    match: String | None = None


class DescribeClientQuotasRequest(Message, flexible_from=1):
    components: Sequence[ComponentData] = []
    strict: Bool = False


class EntityData(Message):
    entity_type: String = ""
    entity_name: String | None = None


class ValueData(Message):
    key: String = ""
    value: Float64 = 0.0


class EntryData(Message):
    entity: Sequence[EntityData] = []
    values: Sequence[ValueData] = []


class DescribeClientQuotasResponse(Message, flexible_from=1):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    entries: Sequence[EntryData] | None = []


class OpData(Message):
    key: String = ""
    value: Float64 = 0.0
    remove: Bool = False


class AlterEntryData(Message):
    entity: Sequence[EntityData] = []
    ops: Sequence[OpData] = []


class AlterClientQuotasRequest(Message, flexible_from=1):
    entries: Sequence[AlterEntryData] = []
    validate_only: Bool = False


class AlterResponseEntryData(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    entity: Sequence[EntityData] = []


class AlterClientQuotasResponse(Message, flexible_from=1):
    throttle_time_ms: Int32 = 0
    entries: Sequence[AlterResponseEntryData] = []
