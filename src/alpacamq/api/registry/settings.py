"""Compatibility and modes: of a subject, of a context, and of the default context."""

import asyncio
from typing import Any

import msgspec

from alpacamq.api.rest.errors import InvalidInput
from alpacamq.registry.errors import (
    ConfigNotFound,
    InvalidCompatibilityLevel,
    InvalidMode,
    ModeNotFound,
    SubjectNotFound,
)
from alpacamq.registry.messages import DeleteConfig, DeleteMode, GetConfig, GetMode, SetConfig, SetMode
from alpacamq.registry.settings import CompatibilityLevel, Config, ConfigUpdate, Mode
from alpacamq.security.acls import Operation

from .bodies import ModeAnswer, ModeBody, level_of
from .route import AnyRoute, Call, Nothing, Right, Route

_DESCRIBE, _ALTER = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
_LEVEL = "compatibility"


def _reading(hidden_as: type[ConfigNotFound] | type[ModeNotFound]) -> Right:
    return Right(operation=Operation.DESCRIBE, on_cluster=_DESCRIBE, hidden_as=hidden_as)


ALTER = Right(operation=_ALTER)
DELETE = Right(operation=_ALTER, hidden_as=SubjectNotFound)


class SettingQuery(msgspec.Struct, frozen=True, rename="camel"):
    """What a setting is for; without a subject, the default context."""

    subject: str | None = None
    default_to_global: bool = False


class ModeQuery(msgspec.Struct, frozen=True):
    """What a mode is for."""

    subject: str | None = None
    force: bool = False
    recursive: bool = False


async def get_config(call: Call[SettingQuery, Nothing]) -> Config:
    wanted = call.parameters
    scope = call.names.scope(wanted.subject)
    # A context without settings has those of all contexts; only a subject can have none.
    is_general = wanted.subject is None and scope is not None
    request = GetConfig(subject=scope, default_to_global=wanted.default_to_global or is_general)
    return _local_alias(call, await call.broker.registry.ask(request))


def _local_alias(call: Call[Any, Any], config: Config) -> Config:
    if config.alias is None:
        return config
    return msgspec.structs.replace(config, alias=call.names.local(config.alias))


async def set_config(call: Call[SettingQuery, dict[str, Any]]) -> dict[str, Any]:
    given = dict(call.body)
    fields = {name: value for name, value in given.items() if name != _LEVEL}
    for name in ("compatibilityLevel", _LEVEL):
        if name in given:
            fields["compatibilityLevel"] = _level(given[name])
    try:
        update = msgspec.convert(fields, ConfigUpdate)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the body is invalid: {error}") from None
    if isinstance(update.alias, str):
        update = msgspec.structs.replace(update, alias=call.names.reference(update.alias))
    scope = call.names.scope(call.parameters.subject)
    await asyncio.shield(call.broker.registry.ask(SetConfig(subject=scope, update=update)))
    if "compatibilityLevel" in fields:
        given.pop("compatibilityLevel", None)
        given[_LEVEL] = fields["compatibilityLevel"]
    return given


def _level(given: object) -> CompatibilityLevel | None:
    if given is None:
        return None
    found = level_of(given) if isinstance(given, str) else None
    if found is None:
        raise InvalidCompatibilityLevel(
            f"invalid compatibility level {given!r}: must be one of {', '.join(CompatibilityLevel)}"
        )
    return found


async def delete_config(call: Call[SettingQuery, Nothing]) -> Config:
    request = DeleteConfig(subject=call.names.scope(call.parameters.subject))
    return _local_alias(call, await asyncio.shield(call.broker.registry.ask(request)))


async def get_mode(call: Call[SettingQuery, Nothing]) -> ModeAnswer:
    wanted = call.parameters
    scope = call.names.scope(wanted.subject)
    is_general = wanted.subject is None and scope is not None
    request = GetMode(subject=scope, default_to_global=wanted.default_to_global or is_general)
    mode = await call.broker.registry.ask(request)
    return ModeAnswer(mode)


async def set_mode(call: Call[ModeQuery, ModeBody]) -> ModeAnswer:
    if (mode := Mode.__members__.get(call.body.mode.upper())) is None:
        settable = ", ".join(each for each in Mode if each is not Mode.FORWARD)
        raise InvalidMode(f"invalid mode {call.body.mode!r}: must be one of {settable}")
    scope = call.names.scope(call.parameters.subject)
    request = SetMode(subject=scope, mode=mode, force=call.parameters.force)
    await asyncio.shield(call.broker.registry.ask(request))
    return ModeAnswer(mode)


async def delete_mode(call: Call[ModeQuery, Nothing]) -> ModeAnswer:
    scope = call.names.scope(call.parameters.subject)
    request = DeleteMode(subject=scope, recursive=call.parameters.recursive)
    return ModeAnswer(await asyncio.shield(call.broker.registry.ask(request)))


def _routes(path: str, of: str) -> tuple[AnyRoute, ...]:
    """Return the routes of settings: of all subjects, and of one."""
    return (
        Route(
            method="GET",
            path=f"/config{path}",
            summary=f"Return the configuration {of}",
            handler=get_config,
            parameters=SettingQuery,
            right=_reading(ConfigNotFound),
        ),
        Route(
            method="PUT",
            path=f"/config{path}",
            summary=f"Change the configuration {of}",
            handler=set_config,
            parameters=SettingQuery,
            body=dict[str, Any],
            right=ALTER,
        ),
        Route(
            method="DELETE",
            path=f"/config{path}",
            summary=f"Delete the configuration {of}",
            handler=delete_config,
            parameters=SettingQuery,
            right=DELETE,
        ),
        Route(
            method="GET",
            path=f"/mode{path}",
            summary=f"Return the mode {of}",
            handler=get_mode,
            parameters=SettingQuery,
            right=_reading(ModeNotFound),
        ),
        Route(
            method="PUT",
            path=f"/mode{path}",
            summary=f"Set the mode {of}; IMPORT takes ids and versions of another registry",
            handler=set_mode,
            parameters=ModeQuery,
            body=ModeBody,
            right=ALTER,
        ),
        Route(
            method="DELETE",
            path=f"/mode{path}",
            summary=f"Delete the mode {of}",
            handler=delete_mode,
            parameters=ModeQuery,
            right=DELETE,
        ),
    )


ROUTES: tuple[AnyRoute, ...] = (*_routes("", "of all subjects"), *_routes("/{subject}", "of a subject"))
