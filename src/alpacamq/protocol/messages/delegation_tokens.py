"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (KIP-48)."""

from collections.abc import Sequence
from typing import Annotated

from alpacamq.protocol.notation import Bytes, Int16, Int32, Int64, Message, String, since


class TokenPrincipal(Message):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(Message, flexible_from=2):
    # Null or empty: the client itself.
    owner_principal_type: Annotated[String | None, since(3)] = None
    owner_principal_name: Annotated[String | None, since(3)] = None
    renewers: Sequence[TokenPrincipal] = []
    max_lifetime_ms: Int64 = -1


class CreateDelegationTokenResponse(Message, flexible_from=2):
    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, since(3)] = ""
    token_requester_principal_name: Annotated[String, since(3)] = ""
    issue_timestamp_ms: Int64 = -1
    expiry_timestamp_ms: Int64 = -1
    max_timestamp_ms: Int64 = -1
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0


class RenewDelegationTokenRequest(Message, flexible_from=2):
    hmac: Bytes = b""
    renew_period_ms: Int64 = -1


class RenewDelegationTokenResponse(Message, flexible_from=2):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


class ExpireDelegationTokenRequest(Message, flexible_from=2):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = -1


class ExpireDelegationTokenResponse(Message, flexible_from=2):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = -1
    throttle_time_ms: Int32 = 0


class DescribeDelegationTokenRequest(Message, flexible_from=2):
    # Null: of all owners.
    owners: Sequence[TokenPrincipal] | None = None


class DescribedDelegationToken(Message):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, since(3)] = ""
    token_requester_principal_name: Annotated[String, since(3)] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: Sequence[TokenPrincipal] = []


class DescribeDelegationTokenResponse(Message, flexible_from=2):
    error_code: Int16 = 0
    tokens: Sequence[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
