"""DescribeUserScramCredentials and AlterUserScramCredentials: users and their passwords.

Clients send passwords salted and hashed. Users of the configuration are neither listed nor changed.
"""

from collections.abc import Collection, Mapping

from alpacamq.api.kafka.call import Backend, Call
from alpacamq.api.kafka.errors import code_of, text_of
from alpacamq.cluster.commands import MAX_SECURITY_CHANGES, UserEdit
from alpacamq.model.errors import AlpacaError, InvalidCredential, InvalidPrincipal, InvalidRequest
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import users as wire
from alpacamq.security.acls import Operation
from alpacamq.security.principals import check_user_name
from alpacamq.security.scram import Mechanism, credential_of
from alpacamq.security.users import User

# Mechanisms by their numbers in the protocol.
MECHANISMS: Mapping[int, Mechanism] = {1: Mechanism.SHA_256, 2: Mechanism.SHA_512}
NUMBERS: Mapping[Mechanism, int] = {mechanism: number for number, mechanism in MECHANISMS.items()}

_TWICE = "a user can be named once in a request"


async def describe_user_scram_credentials(
    backend: Backend, request: wire.DescribeUserScramCredentialsRequest, call: Call
) -> wire.DescribeUserScramCredentialsResponse:
    access = backend.broker.access
    try:
        access.check_cluster(call.caller, Operation.DESCRIBE)
    except AlpacaError as error:
        return wire.DescribeUserScramCredentialsResponse(
            error_code=code_of(error), error_message=text_of(error)
        )
    results: dict[str, wire.DescribeUserScramCredentialsResult] = {}
    if not request.users:  # all of them
        for each in list(access.users()):  # a copy: users may change during a pause
            await call.pause()
            results[each.name] = _description(each)
    for wanted in request.users or ():
        await call.pause()
        name = wanted.name
        if name in results:
            results[name] = wire.DescribeUserScramCredentialsResult(
                user=name, error_code=ErrorCode.DUPLICATE_RESOURCE, error_message=_TWICE
            )
        elif (found := access.stored_user(name)) is None:
            results[name] = wire.DescribeUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.RESOURCE_NOT_FOUND,
                error_message=f"no user is named {name!r}",
            )
        else:
            results[name] = _description(found)
    return wire.DescribeUserScramCredentialsResponse(results=list(results.values()))


def _description(user: User) -> wire.DescribeUserScramCredentialsResult:
    return wire.DescribeUserScramCredentialsResult(
        user=user.name,
        credential_infos=[
            wire.CredentialInfo(mechanism=NUMBERS[mechanism], iterations=credential.iterations)
            for mechanism, credential in user.credentials.items()
        ],
    )


async def alter_user_scram_credentials(
    backend: Backend, request: wire.AlterUserScramCredentialsRequest, call: Call
) -> wire.AlterUserScramCredentialsResponse:
    access = backend.broker.access
    results: dict[str, wire.AlterUserScramCredentialsResult] = {}
    edits: dict[str, UserEdit] = {}
    changes: list[wire.ScramCredentialDeletion | wire.ScramCredentialUpsertion] = [*request.deletions]
    changes += request.upsertions
    refusal: AlpacaError | None = None
    try:
        access.check_cluster(call.caller, Operation.ALTER)
        if len(changes) > MAX_SECURITY_CHANGES:
            raise InvalidRequest(f"at most {MAX_SECURITY_CHANGES} users at once, not {len(changes)}")
    except AlpacaError as error:
        refusal = error
    for change in changes:
        await call.pause()
        name = change.name
        mechanism = MECHANISMS.get(change.mechanism)
        if refusal is not None:
            results[name] = _result(name, code_of(refusal), text_of(refusal))
        elif name in results:
            # As in Kafka: none of the changes takes effect.
            edits.pop(name, None)
            results[name] = _result(name, ErrorCode.DUPLICATE_RESOURCE, _TWICE)
        elif mechanism is None:
            fault = f"unknown mechanism {change.mechanism}"
            results[name] = _result(name, ErrorCode.UNSUPPORTED_SASL_MECHANISM, fault)
        else:
            results[name] = _result(name)
            try:
                edits[name] = _edit(change, mechanism, access.settings.users)
            except AlpacaError as error:
                results[name] = _result(name, code_of(error), text_of(error))
    if edits:
        try:
            failures = (await access.alter_users(edits.values())).failures
        except AlpacaError as error:
            for name in edits:
                results[name] = _result(name, code_of(error), text_of(error))
        else:
            for name, failure in zip(edits, failures, strict=True):
                if failure is not None:
                    cause = failure.to_error()
                    results[name] = _result(name, code_of(cause), text_of(cause))
    return wire.AlterUserScramCredentialsResponse(results=list(results.values()))


def _edit(
    change: wire.ScramCredentialDeletion | wire.ScramCredentialUpsertion,
    mechanism: Mechanism,
    configured: Collection[str],
) -> UserEdit:
    if isinstance(change, wire.ScramCredentialDeletion):
        return UserEdit(change.name, mechanism)
    if change.name in configured:
        raise InvalidRequest(f"user {change.name!r} is in security.users_file, which decides on its password")
    try:
        check_user_name(change.name)
    except InvalidPrincipal as error:
        raise InvalidCredential(str(error)) from None
    credential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
    return UserEdit(change.name, mechanism, credential)


def _result(
    name: str, code: ErrorCode = ErrorCode.NONE, text: str | None = None
) -> wire.AlterUserScramCredentialsResult:
    return wire.AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)
