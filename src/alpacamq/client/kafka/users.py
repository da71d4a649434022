"""Users of a cluster and their passwords, which are salted and hashed here."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from alpacamq.client.errors import NotFound, check, only
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

# Re-exported as arguments of set_password.
from alpacamq.security.scram import DEFAULT_ITERATIONS as DEFAULT_ITERATIONS
from alpacamq.security.scram import SALT_BYTES, salted_password
from alpacamq.security.scram import Mechanism as Mechanism

from .cluster import Cluster

_MECHANISMS: Mapping[int, Mechanism] = {1: Mechanism.SHA_256, 2: Mechanism.SHA_512}
_NUMBERS: Mapping[Mechanism, int] = {mechanism: number for number, mechanism in _MECHANISMS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDescription:
    """A user, and the iterations of its password for each mechanism."""

    name: str
    iterations: Mapping[Mechanism, int]


def list_users(cluster: Cluster) -> list[UserDescription]:
    """Return all users, without those of the configuration."""
    results = _describe(cluster, "listing users", None)
    for result in results:
        check(f"user {result.user!r}", result.error_code, result.error_message)
    return sorted(map(_description, results), key=lambda each: each.name)


def find_user(cluster: Cluster, name: str) -> UserDescription | None:
    """Return a user; None if there is none of this name."""
    about = f"user {name!r}"
    result = only(about, _describe(cluster, about, [UserName(name=name)]))
    if result.error_code == ErrorCode.RESOURCE_NOT_FOUND:
        return None
    check(about, result.error_code, result.error_message)
    return _description(result)


def known_user(cluster: Cluster, name: str) -> UserDescription:
    """Return a user; NotFound with similar names if there is none."""
    found = find_user(cluster, name)
    if found is None:
        raise NotFound("user", name, [each.name for each in list_users(cluster)])
    return found


def set_password(
    cluster: Cluster, name: str, password: str, mechanisms: Iterable[Mechanism], iterations: int
) -> None:
    """Create a user, or change its password, for each of the mechanisms."""
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_BYTES)
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=_NUMBERS[mechanism],
            iterations=iterations,
            salt=salt,
            salted_password=salted_password(mechanism, password, salt, iterations),
        )
        _alter(cluster, name, AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def delete_user(cluster: Cluster, name: str) -> None:
    """Delete a user with all its passwords."""
    for mechanism in known_user(cluster, name).iterations:
        deletion = ScramCredentialDeletion(name=name, mechanism=_NUMBERS[mechanism])
        _alter(cluster, name, AlterUserScramCredentialsRequest(deletions=[deletion]))


def _describe(
    cluster: Cluster, about: str, names: Sequence[UserName] | None
) -> Sequence[DescribeUserScramCredentialsResult]:
    request = DescribeUserScramCredentialsRequest(users=names)
    answer = cluster.any_broker().call(request, DescribeUserScramCredentialsResponse)
    check(about, answer.error_code, answer.error_message)
    return answer.results


def _description(result: DescribeUserScramCredentialsResult) -> UserDescription:
    return UserDescription(
        name=result.user,
        iterations={
            _MECHANISMS[each.mechanism]: each.iterations
            for each in result.credential_infos
            if each.mechanism in _MECHANISMS
        },
    )


def _alter(cluster: Cluster, name: str, request: AlterUserScramCredentialsRequest) -> None:
    answer = cluster.any_broker().call(request, AlterUserScramCredentialsResponse)
    result = only(f"user {name!r}", answer.results)
    check(f"user {name!r}", result.error_code, result.error_message)
