"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken.

Only clients that have authenticated, and not with a delegation token, may use them.
"""

import msgspec

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of
from alpacamq.broker.access import Caller
from alpacamq.model.errors import AlpacaError, DelegationTokenRequestNotAllowed
from alpacamq.protocol.messages import delegation_tokens as wire
from alpacamq.security.acls import Operation, ResourceType
from alpacamq.security.delegation_tokens import DelegationToken
from alpacamq.security.principals import ANONYMOUS, Principal


async def create_delegation_token(
    backend: Backend, request: wire.CreateDelegationTokenRequest, call: Call
) -> wire.CreateDelegationTokenResponse:
    access, requester = backend.broker.access, call.caller.principal
    owner = requester
    if request.owner_principal_name:
        owner = Principal(request.owner_principal_type or "", request.owner_principal_name)
    response = wire.CreateDelegationTokenResponse(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
    )
    renewers = [Principal(each.principal_type, each.principal_name) for each in request.renewers]
    try:
        _check_allowed(call.caller)
        if owner != requester:
            access.check(call.caller, Operation.CREATE_TOKENS, ResourceType.USER, str(owner))
        token = await access.delegation_tokens.create(owner, requester, renewers, request.max_lifetime_ms)
    except AlpacaError as error:
        return msgspec.structs.replace(response, error_code=code_of(error))
    return msgspec.structs.replace(
        response,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.id,
        hmac=access.delegation_tokens.hmac(token),
    )


async def renew_delegation_token(
    backend: Backend, request: wire.RenewDelegationTokenRequest, call: Call
) -> wire.RenewDelegationTokenResponse:
    tokens = backend.broker.access.delegation_tokens
    try:
        _check_allowed(call.caller)
        token = await tokens.renew(request.hmac, call.caller.principal, request.renew_period_ms)
    except AlpacaError as error:
        return wire.RenewDelegationTokenResponse(error_code=code_of(error))
    return wire.RenewDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


async def expire_delegation_token(
    backend: Backend, request: wire.ExpireDelegationTokenRequest, call: Call
) -> wire.ExpireDelegationTokenResponse:
    tokens = backend.broker.access.delegation_tokens
    try:
        _check_allowed(call.caller)
        token = await tokens.expire(request.hmac, call.caller.principal, request.expiry_time_period_ms)
    except AlpacaError as error:
        return wire.ExpireDelegationTokenResponse(error_code=code_of(error))
    return wire.ExpireDelegationTokenResponse(expiry_timestamp_ms=token.expires_ms)


async def describe_delegation_token(
    backend: Backend, request: wire.DescribeDelegationTokenRequest, call: Call
) -> wire.DescribeDelegationTokenResponse:
    access = backend.broker.access
    try:
        _check_allowed(call.caller)
        access.delegation_tokens.check_enabled()
    except AlpacaError as error:
        return wire.DescribeDelegationTokenResponse(error_code=code_of(error))
    owners: set[str] | None = None
    if request.owners is not None:
        owners = set()
        for each in request.owners:
            await call.pause()
            owners.add(f"{each.principal_type}:{each.principal_name}")
    described = []
    for token in access.delegation_tokens.all():
        await call.pause()
        is_wanted = owners is None or not owners.isdisjoint(token.principals)
        if is_wanted and _may_see(backend, call.caller, token):
            described.append(_described(backend, token))
    return wire.DescribeDelegationTokenResponse(tokens=described)


def _check_allowed(caller: Caller) -> None:
    if caller.principal == ANONYMOUS or caller.is_delegate:
        raise DelegationTokenRequestNotAllowed(
            "delegation tokens are for clients that have authenticated, and not with a delegation token"
        )


def _may_see(backend: Backend, caller: Caller, token: DelegationToken) -> bool:
    access = backend.broker.access
    return (
        caller.name in token.principals
        or access.sees(caller, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id)
        or access.sees(caller, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _described(backend: Backend, token: DelegationToken) -> wire.DescribedDelegationToken:
    owner, requester = Principal.parse(token.owner), Principal.parse(token.requester)
    return wire.DescribedDelegationToken(
        principal_type=owner.kind,
        principal_name=owner.name,
        token_requester_principal_type=requester.kind,
        token_requester_principal_name=requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.id,
        hmac=backend.broker.access.delegation_tokens.hmac(token),
        renewers=[
            wire.TokenPrincipal(principal_type=each.kind, principal_name=each.name)
            for each in map(Principal.parse, token.renewers)
        ],
    )
