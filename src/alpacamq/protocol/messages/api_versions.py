"""ApiVersions: which requests, in which versions, a broker understands."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import Bool, Int16, Int32, Int64, Message, String, since, tag


class ApiVersionsRequest(Message, flexible_from=3):
    client_software_name: Annotated[String, since(3)] = ""
    client_software_version: Annotated[String, since(3)] = ""


class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message, flexible_from=3):
    error_code: Int16 = 0
    api_keys: Sequence[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], tag(0, since=3)] = []
    finalized_features_epoch: Annotated[Int64, tag(1, since=3)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], tag(2, since=3)] = []
    zk_migration_ready: Annotated[Bool, tag(3, since=3)] = False
