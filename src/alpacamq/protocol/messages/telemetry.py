"""GetTelemetrySubscriptions and PushTelemetry: metrics of clients (KIP-714)."""

from collections.abc import Sequence

from alpacamq.protocol.notation import ZERO_UUID, Bool, Bytes, Int8, Int16, Int32, Message, String, Uuid


class GetTelemetrySubscriptionsRequest(Message, flexible_from=0):
    client_instance_id: Uuid = ZERO_UUID


class GetTelemetrySubscriptionsResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: Sequence[Int8] = []
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: Sequence[String] = []


class PushTelemetryRequest(Message, flexible_from=0):
    client_instance_id: Uuid = ZERO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
