"""Users and their passwords: listing, creating and deleting users, and changing their passwords.

Passwords come in clear text, as at a login, and are hashed here; nothing stores or returns them. Users of
`security.users_file` are neither listed nor changed.
"""

from collections.abc import Collection
from http import HTTPStatus
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.rest.errors import AlreadyExists
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.cluster.commands import UserEdit
from alpacamq.model.errors import (
    FeatureNotEnabled,
    InvalidCredential,
    InvalidPrincipal,
    InvalidRequest,
    UnknownUser,
)
from alpacamq.security.principals import MAX_NAME_LENGTH, check_user_name
from alpacamq.security.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MAX_PASSWORD_BYTES,
    MIN_ITERATIONS,
    Mechanism,
)
from alpacamq.security.users import User

# Kafka's protocol has no place for it: its clients send hashes.
MIN_PASSWORD_LENGTH = 8
MAX_LISTED = 10_000

UserName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH, description="a user's name")]
PasswordText = Annotated[
    str, Meta(min_length=1, max_length=MAX_PASSWORD_BYTES, description="the password in clear text")
]
Mechanisms = Annotated[tuple[Mechanism, ...], Meta(min_length=1, max_length=len(Mechanism))]
Iterations = Annotated[
    int, Meta(ge=MIN_ITERATIONS, le=MAX_ITERATIONS, description="how often the password is hashed")
]


class UsersQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which users to list."""

    prefix: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)] = ""
    after: Annotated[str, Meta(max_length=MAX_NAME_LENGTH)] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 1000


class NewUser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user to create; it can log in with each of the mechanisms, and with PLAIN."""

    name: UserName
    password: PasswordText
    mechanisms: Mechanisms = tuple(Mechanism)
    iterations: Iterations = DEFAULT_ITERATIONS


class OfUser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user."""

    user: UserName


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A password to set for every mechanism that the user has; as many iterations as before."""

    password: PasswordText
    iterations: Iterations | UnsetType = UNSET


class UserCredential(msgspec.Struct, frozen=True, kw_only=True):
    """A way in which a user can log in."""

    mechanism: Mechanism
    iterations: int


class UserDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without its password."""

    name: str
    credentials: list[UserCredential]


class UserList(msgspec.Struct, frozen=True, kw_only=True):
    """Users, by name. `next` is the value of `after` for those that follow."""

    users: list[UserDescription]
    next: str | None = None


def list_users(call: Call[UsersQuery, Nothing]) -> UserList:
    wanted = call.parameters
    names = (user.name for user in call.backend.broker.access.users())
    found = sorted(name for name in names if name.startswith(wanted.prefix) and name > wanted.after)
    users = [_described(call, name) for name in islice(found, wanted.limit)]
    return UserList(users=users, next=users[-1].name if len(found) > wanted.limit else None)


async def create_user(call: Call[Nothing, NewUser]) -> UserDescription:
    body = call.body
    check_user_name(body.name)
    _check_not_of_file(call, body.name)
    if call.backend.broker.access.stored_user(body.name) is not None:
        raise AlreadyExists(f"a user named {body.name!r} exists already; change its password instead")
    await _set_password(call, body.name, body.password, body.mechanisms, body.iterations)
    return _described(call, body.name)


async def change_password(call: Call[OfUser, NewPassword]) -> UserDescription:
    name, body = call.parameters.user, call.body
    _check_not_of_file(call, name)
    credentials = _known(call, name).credentials
    iterations = body.iterations
    if iterations is UNSET:
        iterations = max(each.iterations for each in credentials.values())
    # All of them: the old password must not stay valid for one.
    await _set_password(call, name, body.password, sorted(credentials), iterations)
    return _described(call, name)


async def delete_user(call: Call[OfUser, Nothing]) -> None:
    name = call.parameters.user
    results = await call.backend.broker.access.alter_users([UserEdit(name, None)])
    for failure in filter(None, results.failures):
        raise failure.to_error()


async def _set_password(
    call: Call[Nothing, NewUser] | Call[OfUser, NewPassword],
    name: str,
    password: str,
    mechanisms: Collection[Mechanism],
    iterations: int,
) -> None:
    if len(password) < MIN_PASSWORD_LENGTH:
        raise InvalidCredential(f"the password is too short: at least {MIN_PASSWORD_LENGTH} characters")
    if len(password.encode()) > MAX_PASSWORD_BYTES:
        raise InvalidCredential(f"the password is too long: at most {MAX_PASSWORD_BYTES} bytes")
    if password.casefold() == name.casefold():
        raise InvalidCredential("the password must not be the name of the user")
    await call.backend.broker.access.set_password(name, password, set(mechanisms), iterations)


def _check_not_of_file(call: Call[Nothing, NewUser] | Call[OfUser, NewPassword], name: str) -> None:
    if name in call.backend.broker.access.settings.users:
        raise InvalidRequest(f"user {name!r} is in security.users_file, which decides on its password")


def _known(call: Call[OfUser, NewPassword], name: str) -> User:
    user = call.backend.broker.access.stored_user(name)
    if user is None:
        raise UnknownUser(f"no user is named {name!r}")
    return user


def _described(
    call: Call[UsersQuery, Nothing] | Call[Nothing, NewUser] | Call[OfUser, NewPassword], name: str
) -> UserDescription:
    user = call.backend.broker.access.stored_user(name)
    credentials = {} if user is None else user.credentials  # deleted again meanwhile
    return UserDescription(
        name=name,
        credentials=[
            UserCredential(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in sorted(credentials.items())
        ],
    )


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/users",
        summary="List users and how they can log in",
        handler=list_users,
        parameters=UsersQuery,
        body=Nothing,
        answers=(UserList,),
    ),
    Route(
        method="POST",
        path="/users",
        summary="Create a user with a password",
        handler=create_user,
        parameters=Nothing,
        body=NewUser,
        answers=(UserDescription,),
        status=HTTPStatus.CREATED,
        errors=(AlreadyExists, InvalidCredential, InvalidPrincipal, InvalidRequest, FeatureNotEnabled),
    ),
    Route(
        method="PUT",
        path="/users/{user}/password",
        summary="Change the password of a user, for every mechanism that it has",
        handler=change_password,
        parameters=OfUser,
        body=NewPassword,
        answers=(UserDescription,),
        errors=(UnknownUser, InvalidCredential, InvalidRequest),
    ),
    Route(
        method="DELETE",
        path="/users/{user}",
        summary="Delete a user with its API keys",
        handler=delete_user,
        parameters=OfUser,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
        errors=(UnknownUser,),
    ),
)
