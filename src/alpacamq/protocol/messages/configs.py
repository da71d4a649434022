"""Reading and changing the settings of topics and brokers."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import (
    Bool,
    ErrorText,
    Int8,
    Int16,
    Int32,
    Message,
    ResourceName,
    String,
    since,
)


class DescribeConfigsResource(Message):
    resource_type: Int8
    resource_name: ResourceName
    configuration_keys: Sequence[String] | None = None


class DescribeConfigsRequest(Message, flexible_from=4):
    resources: Sequence[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, since(3)] = False


class DescribeConfigsSynonym(Message):
    name: String
    value: String | None = None
    source: Int8


class DescribeConfigsResourceResult(Message):
    name: String
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[DescribeConfigsSynonym] = []
    config_type: Annotated[Int8, since(3)] = 0
    documentation: Annotated[String | None, since(3)] = None


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    resource_type: Int8
    resource_name: ResourceName
    configs: Sequence[DescribeConfigsResourceResult] = []


class DescribeConfigsResponse(Message, flexible_from=4):
    throttle_time_ms: Int32 = 0
    results: Sequence[DescribeConfigsResult] = []


class AlterableConfig(Message):
    name: String
    value: String | None = None


class AlterConfigsResource(Message):
    resource_type: Int8
    resource_name: ResourceName
    configs: Sequence[AlterableConfig] = []


class AlterConfigsRequest(Message, flexible_from=2):
    resources: Sequence[AlterConfigsResource] = []
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    resource_type: Int8
    resource_name: ResourceName


class AlterConfigsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = []


class IncrementallyAlterableConfig(Message):
    name: String
    config_operation: Int8
    value: String | None = None


class IncrementalAlterConfigsResource(Message):
    resource_type: Int8
    resource_name: ResourceName
    configs: Sequence[IncrementallyAlterableConfig] = []


class IncrementalAlterConfigsRequest(Message, flexible_from=1):
    resources: Sequence[IncrementalAlterConfigsResource] = []
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Message, flexible_from=1):
    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse] = []


class ListConfigResourcesRequest(Message, flexible_from=0):
    resource_types: Annotated[Sequence[Int8], since(1)] = []


class ConfigResource(Message):
    resource_name: ResourceName
    resource_type: Annotated[Int8, since(1)] = 16


class ListConfigResourcesResponse(Message, flexible_from=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: Sequence[ConfigResource] = []
