"""`alpacactl quota`: limits of users, client ids and addresses."""

import argparse
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from .commands import add_confirmation, add_verb, confirm, connect, pair, verbs_of
from .output import Output, Table
from .parsing import CommandError, UsageError

if TYPE_CHECKING:
    from alpacamq.client.kafka.access import ClientQuota, Entity, EntityPart

    from .yaml import Plain

_DEFAULT = "(default)"
_KEYS = "producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate"
_CONNECTION_KEYS = "connection_creation_rate, connection_count"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    listing = add_verb(
        verbs, common, "list", "list quotas, all or those of an entity", _list,
        ["alpacactl quota list", "alpacactl quota list --principal alice"],
    )  # fmt: skip
    _add_entity(listing)
    setting = add_verb(
        verbs, common, "set", "set quotas of a user, a client id, both, or an address", _set,
        [
            "alpacactl quota set --principal alice producer_byte_rate=1048576 consumer_byte_rate=2097152",
            "alpacactl quota set --default-principal request_percentage=20 connection_count=100",
            "alpacactl quota set --principal alice --client-id reports consumer_byte_rate=524288",
            "alpacactl quota set --default-ip connection_creation_rate=50 connection_count=200",
        ],
    )  # fmt: skip
    setting.description = (
        "Set quotas; other quotas of the same entity are kept. They apply to each broker separately. "
        f"Quotas of users and client ids: {_KEYS}. Quotas of users and of addresses: {_CONNECTION_KEYS}."
    )
    _add_entity(setting)
    setting.add_argument("values", nargs="+", type=_value, metavar="QUOTA=VALUE")
    removing = add_verb(
        verbs, common, "remove", "remove quotas of an entity, all or those named", _remove,
        [
            "alpacactl quota remove --principal alice producer_byte_rate --yes",
            "alpacactl quota remove --default-ip --yes",
        ],
    )  # fmt: skip
    _add_entity(removing)
    removing.add_argument("quotas", nargs="*", metavar="QUOTA", help="all if none is named")
    add_confirmation(removing)


def _add_entity(verb: argparse.ArgumentParser) -> None:
    for option, metavar, parse, what, others in (
        ("principal", "USER", _user, "user name", "users"),
        ("client-id", "ID", _name, "client id of Kafka clients", "client ids"),
        ("ip", "ADDRESS", _name, "IP address of clients", "addresses"),
    ):
        either = verb.add_mutually_exclusive_group()
        either.add_argument(f"--{option}", type=parse, metavar=metavar, help=what)
        either.add_argument(
            f"--default-{option}",
            action="store_true",
            help=f"the default of {others}, which each without its own quota has",
        )


def _user(text: str) -> str:
    return _name(text.removeprefix("User:"))


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a name must not be empty")
    return text


def _value(text: str) -> tuple[str, float]:
    key, value = pair(text)
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not isfinite(number) or number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: the value must be a number greater than 0")
    return key, number


def _entity(parsed: argparse.Namespace) -> "list[EntityPart]":
    """Return the parts of the entity that the options name."""
    from alpacamq.client.kafka.access import CLIENT_ID, IP, USER, EntityPart

    return [
        EntityPart(type_, name)
        for type_, name, is_default in (
            (CLIENT_ID, parsed.client_id, parsed.default_client_id),
            (IP, parsed.ip, parsed.default_ip),
            (USER, parsed.principal, parsed.default_principal),
        )
        if name is not None or is_default
    ]


def _named_entity(parsed: argparse.Namespace) -> "Entity":
    entity = tuple(_entity(parsed))
    if not entity:
        raise UsageError("name whose quotas: --principal, --client-id or --ip, or one of their defaults")
    return entity


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import list_quotas

    with connect(parsed) as cluster:
        quotas = list_quotas(cluster, _entity(parsed))
    _show(output, quotas)


def _set(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import ClientQuota, set_quotas

    entity, values = _named_entity(parsed), dict(parsed.values)
    if len(values) < len(parsed.values):
        raise UsageError("a quota is set twice")
    with connect(parsed) as cluster:
        set_quotas(cluster, entity, values)
    output.done(
        _plain(ClientQuota(entity=entity, values=values)), f"set {', '.join(values)} of {_described(entity)}"
    )


def _remove(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import ClientQuota, list_quotas, remove_quotas

    entity = _named_entity(parsed)
    with connect(parsed) as cluster:
        found = [quota for quota in list_quotas(cluster, entity) if set(quota.entity) == set(entity)]
        values = dict(found[0].values) if found else {}
        if missing := [key for key in parsed.quotas if key not in values]:
            raise CommandError(f"there is no quota {missing[0]} of {_described(entity)}")
        removed = {key: value for key, value in values.items() if key in parsed.quotas or not parsed.quotas}
        if not removed:
            raise CommandError(f"there is no quota of {_described(entity)}")
        confirm(parsed, f"remove {', '.join(removed)} of {_described(entity)}")
        remove_quotas(cluster, entity, removed)
    output.done(
        _plain(ClientQuota(entity=entity, values=removed)),
        f"removed {', '.join(removed)} of {_described(entity)}",
    )


def _described(entity: "Entity") -> str:
    return " and ".join(f"{type_} {_DEFAULT if name is None else name}" for type_, name in entity)


def _show(output: Output, quotas: "Sequence[ClientQuota]") -> None:
    rows: list[list[Plain]] = []
    for quota in quotas:
        names = {type_: _DEFAULT if name is None else name for type_, name in quota.entity}
        whose = [names.get(type_) for type_ in ("user", "client-id", "ip")]
        rows += [[*whose, key, _number(value)] for key, value in sorted(quota.values.items())]
    output.show(
        [_plain(quota) for quota in quotas], Table(["user", "client-id", "ip", "quota", "value"], rows)
    )


def _plain(quota: "ClientQuota") -> "dict[str, Plain]":
    return {
        "entity": dict(quota.entity),
        "values": {key: _number(value) for key, value in quota.values.items()},
    }


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value
