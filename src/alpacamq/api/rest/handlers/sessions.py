"""Logins of the console: a browser gets a cookie for a user and password, or for an API key."""

from http import HTTPStatus
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from alpacamq.api.http.messages import Response
from alpacamq.api.rest.errors import LINE_END, ConflictingInput
from alpacamq.api.rest.route import AnyRoute, Call, Nothing, Route
from alpacamq.broker.access import Caller
from alpacamq.model.errors import AuthenticationFailed, RateLimited, SecurityDisabled
from alpacamq.security.principals import ANONYMOUS, MAX_NAME_LENGTH

MAX_SECRET_LENGTH = 4096


class Credentials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user and its password, or an API key."""

    user: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_LENGTH)] | UnsetType = UNSET
    password: Annotated[str, Meta(min_length=1, max_length=MAX_SECRET_LENGTH)] | UnsetType = UNSET
    key: Annotated[str, Meta(min_length=1, max_length=MAX_SECRET_LENGTH)] | UnsetType = UNSET


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Who the client is."""

    # None for a client that has not authenticated.
    user: str | None
    # The id of the API key that it used.
    key_id: str | None
    # Whether requests need a login, and whether one makes a difference.
    is_required: bool
    is_available: bool
    # Of a session: the value of X-CSRF-Token, and when it ends in any case.
    csrf_token: str | None = None
    expires: int | None = None


def show_session(call: Call[Nothing, Nothing]) -> Response:
    return _answer(call, call.caller)


async def log_in(call: Call[Nothing, Credentials]) -> Response:
    login, given = call.backend.login, call.body
    if not login.has_sessions(call.request):
        raise SecurityDisabled("clients do not have to log in here (security.authentication is false)")
    if given.key is not UNSET and given.user is UNSET and given.password is UNSET:
        caller = login.by_key(call.request, given.key)
    elif given.key is UNSET and given.user is not UNSET and given.password is not UNSET:
        caller = await login.log_in(call.request, given.user, given.password)
    else:
        raise ConflictingInput("give either user and password, or key")
    began = await login.begin_session(call.request, caller)
    assert began.session is not None
    return _answer(call, began, (login.set_cookie(began.session),))


async def log_out(call: Call[Nothing, Nothing]) -> Response:
    session = call.caller.session
    headers = () if session is None else (await call.backend.login.end_session(session),)
    return Response(HTTPStatus.NO_CONTENT, headers=headers)


def _answer(
    call: Call[Nothing, Nothing] | Call[Nothing, Credentials],
    caller: Caller,
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    login, session = call.backend.login, caller.session
    answer = Login(
        user=None if caller.principal == ANONYMOUS else caller.principal.name,
        key_id=caller.key_id or None,
        is_required=login.is_required(call.request),
        is_available=login.has_sessions(call.request),
        csrf_token=None if session is None else login.csrf_token(session),
        expires=None if session is None else login.end_ms(session),
    )
    no_store = ("Cache-Control", "no-store")
    return Response(HTTPStatus.OK, msgspec.json.encode(answer) + LINE_END, headers=(no_store, *headers))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        method="GET",
        path="/session",
        summary="Show who the client is, and the CSRF token of its session",
        handler=show_session,
        parameters=Nothing,
        body=Nothing,
        answers=(Login,),
    ),
    Route(
        method="POST",
        path="/session",
        summary="Log in with a user and password or an API key; sets a cookie",
        handler=log_in,
        parameters=Nothing,
        body=Credentials,
        answers=(Login,),
        errors=(AuthenticationFailed, RateLimited, SecurityDisabled),
    ),
    Route(
        method="DELETE",
        path="/session",
        summary="Log out; removes the cookie",
        handler=log_out,
        parameters=Nothing,
        body=Nothing,
        status=HTTPStatus.NO_CONTENT,
    ),
)
