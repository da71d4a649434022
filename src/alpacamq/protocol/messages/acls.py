"""DescribeAcls, CreateAcls and DeleteAcls: access control lists."""

from collections.abc import Sequence

from alpacamq.protocol.notation import ErrorText, Int8, Int16, Int32, Message, String

_LITERAL = 3


class DescribeAclsRequest(Message, flexible_from=2):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = _LITERAL
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8 = 0
    permission_type: Int8 = 0


class AclDescription(Message):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message):
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = _LITERAL
    acls: Sequence[AclDescription] = []


class DescribeAclsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    resources: Sequence[DescribeAclsResource] = []


class AclCreation(Message):
    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = _LITERAL
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Message, flexible_from=2):
    creations: Sequence[AclCreation] = []


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None


class CreateAclsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    results: Sequence[AclCreationResult] = []


class DeleteAclsFilter(Message):
    resource_type_filter: Int8
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = _LITERAL
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Message, flexible_from=2):
    filters: Sequence[DeleteAclsFilter] = []


class DeleteAclsMatchingAcl(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = _LITERAL
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Message):
    error_code: Int16 = 0
    error_message: ErrorText | None = None
    matching_acls: Sequence[DeleteAclsMatchingAcl] = []


class DeleteAclsResponse(Message, flexible_from=2):
    throttle_time_ms: Int32 = 0
    filter_results: Sequence[DeleteAclsFilterResult] = []
