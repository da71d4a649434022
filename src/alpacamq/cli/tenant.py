"""`alpacactl tenant`: tenants, their principals and limits."""

import argparse
from typing import TYPE_CHECKING

from .cells import age, size
from .commands import add_confirmation, add_verb, confirm, connect_http, pair, verbs_of
from .output import Output, Table
from .parsing import UsageError

if TYPE_CHECKING:
    from alpacamq.wire.tenants import TenantDescription

LIMITS = (
    "topics", "partitions", "storage_bytes", "message_bytes", "connections", "groups", "group_members",
    "retention_ms", "delay_ms", "produce_bytes_per_second", "fetch_bytes_per_second",
    "produce_messages_per_second", "fetch_messages_per_second",
)  # fmt: skip
_STATUSES = {"suspend": "suspended", "disable": "disabled", "activate": "active"}


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list tenants", _list, ["alpacactl tenant list"])
    create = add_verb(
        verbs, common, "create", "create a tenant", _create,
        ["alpacactl tenant create shop --limit topics=100 --limit storage_bytes=10737418240"],
    )  # fmt: skip
    _add_values(create)
    show = add_verb(
        verbs, common, "show", "show a tenant, its principals, limits and usage", _show,
        ["alpacactl tenant show shop"],
    )  # fmt: skip
    topics = add_verb(
        verbs, common, "topics", "list the topics of a tenant", _topics, ["alpacactl tenant topics shop"]
    )
    change = add_verb(
        verbs, common, "set", "change the description and limits of a tenant", _set,
        ["alpacactl tenant set shop --limit topics=200", "alpacactl tenant set shop --limit topics="],
    )  # fmt: skip
    _add_values(change, description=None)
    suspend = add_verb(
        verbs, common, "suspend", "refuse all requests of a tenant", _set_status,
        ["alpacactl tenant suspend shop --reason 'invoice 17 is not paid'"],
    )  # fmt: skip
    disable = add_verb(
        verbs, common, "disable", "refuse all requests and logins of a tenant", _set_status,
        ["alpacactl tenant disable shop --reason 'contract ended'"],
    )  # fmt: skip
    activate = add_verb(
        verbs, common, "activate", "serve a tenant again", _set_status, ["alpacactl tenant activate shop"]
    )
    for verb, name in ((suspend, "suspend"), (disable, "disable"), (activate, "activate")):
        verb.set_defaults(status=name)
    for verb in (suspend, disable):
        verb.add_argument("--reason", metavar="TEXT", default="", help="shown to its clients")
    add = add_verb(
        verbs, common, "add-principal", "make a principal a member of a tenant", _add_principal,
        ["alpacactl tenant add-principal shop User:alice --admin"],
    )  # fmt: skip
    add.add_argument("--admin", action="store_true", help="let it do everything inside the tenant")
    remove = add_verb(
        verbs, common, "remove-principal", "remove a principal from a tenant", _remove_principal,
        ["alpacactl tenant remove-principal shop User:alice --yes"],
    )  # fmt: skip
    delete = add_verb(
        verbs, common, "delete", "delete a tenant that has no topics and no groups", _delete,
        ["alpacactl tenant delete shop --yes"],
    )  # fmt: skip
    for verb in (create, show, topics, change, suspend, disable, activate, add, remove, delete):
        verb.add_argument("tenant", metavar="ID", help="of the tenant")
    for verb in (add, remove):
        verb.add_argument("principal", metavar="NAME", help="of the principal, as User:alice")
    for verb in (remove, delete):
        add_confirmation(verb)


def _add_values(verb: argparse.ArgumentParser, description: str | None = "") -> None:
    verb.add_argument("--description", metavar="TEXT", default=description, help="what it is")
    verb.add_argument(
        "--limit",
        action="append",
        type=pair,
        default=[],
        metavar="NAME=NUMBER",
        help=f"limit {', '.join(LIMITS)}; without a number, remove the limit; may be repeated",
    )


def _limits(parsed: argparse.Namespace) -> dict[str, int | None]:
    limits: dict[str, int | None] = {}
    for name, text in parsed.limit:
        if name not in LIMITS:
            raise UsageError(f"--limit: there is no limit {name!r}, only {', '.join(LIMITS)}")
        if text and not (text.isascii() and text.isdigit()):
            raise UsageError(f"--limit: {name}={text!r} must be a whole number")
        limits[name] = int(text) if text else None
    return limits


def _list(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.administration import list_tenants

    with connect_http(parsed) as api:
        tenants = list_tenants(api)
    rows = [
        [
            each.id,
            each.status,
            len(each.principals),
            age(each.created),
            each.reason or each.description or None,
        ]
        for each in tenants
    ]
    columns = ["tenant", "status", "principals", "created", "description"]
    output.show(msgspec.to_builtins(tenants), Table(columns, rows, title="Tenants"))


def _create(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.administration import create_tenant

    with connect_http(parsed) as api:
        created = create_tenant(api, parsed.tenant, description=parsed.description, limits=_limits(parsed))
    output.done(msgspec.to_builtins(created), f"created tenant {created.id}")


def _show(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.administration import describe_tenant, tenant_usage

    with connect_http(parsed) as api:
        tenant = describe_tenant(api, parsed.tenant)
        usage = tenant_usage(api, parsed.tenant)
    rows: list[list[object]] = [["tenant", tenant.id], ["status", tenant.status]]
    rows += [[name, text] for name in ("reason", "description") if (text := getattr(tenant, name))]
    rows += [["principal", _principal(each.principal, is_admin=each.admin)] for each in tenant.principals]
    used = {"topics": usage.topics, "partitions": usage.partitions, "groups": usage.groups}
    for name, count in used.items():
        rows.append([name, _of_limit(str(count), tenant.limits.get(name))])
    limit = tenant.limits.get("storage_bytes")
    rows.append(["storage", _of_limit(size(usage.storage_bytes).text, limit)])
    others = {*tenant.limits} - {*used, "storage_bytes"}
    rows += [[f"limit {name}", tenant.limits[name]] for name in LIMITS if name in others]
    shown = {**msgspec.to_builtins(tenant), "usage": msgspec.to_builtins(usage)}
    output.show(shown, Table(["of", "value"], rows))


def _principal(name: str, *, is_admin: bool) -> str:
    return f"{name} (administrator)" if is_admin else name


def _of_limit(used: str, limit: int | None) -> str:
    return used if limit is None else f"{used} of {limit}"


def _topics(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.administration import tenant_topics

    with connect_http(parsed) as api:
        topics = tenant_topics(api, parsed.tenant)
    rows = [[each.name, each.stored_name, each.partitions] for each in topics]
    output.show(msgspec.to_builtins(topics), Table(["topic", "name for operators", "partitions"], rows))


def _set(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import change_tenant

    limits = _limits(parsed)
    if not limits and parsed.description is None:
        raise UsageError("nothing to change: use --limit or --description")
    with connect_http(parsed) as api:
        changed = change_tenant(api, parsed.tenant, description=parsed.description, limits=limits)
    _done(output, changed, f"changed tenant {changed.id}")


def _set_status(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import set_status

    with connect_http(parsed) as api:
        changed = set_status(api, parsed.tenant, parsed.status, getattr(parsed, "reason", ""))
    _done(output, changed, f"tenant {changed.id} is {_STATUSES[parsed.status]}")


def _add_principal(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import add_principal

    with connect_http(parsed) as api:
        changed = add_principal(api, parsed.tenant, parsed.principal, is_admin=parsed.admin)
    _done(output, changed, f"{parsed.principal} belongs to tenant {changed.id}")


def _remove_principal(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import remove_principal

    with connect_http(parsed) as api:
        confirm(parsed, f"remove {parsed.principal} from tenant {parsed.tenant}")
        remove_principal(api, parsed.tenant, parsed.principal)
    output.done({"removed": parsed.principal}, f"removed {parsed.principal} from tenant {parsed.tenant}")


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import delete_tenant

    with connect_http(parsed) as api:
        confirm(parsed, f"delete tenant {parsed.tenant}")
        delete_tenant(api, parsed.tenant)
    output.done({"deleted": parsed.tenant}, f"deleted tenant {parsed.tenant}")


def _done(output: Output, changed: "TenantDescription", text: str) -> None:
    import msgspec

    output.done(msgspec.to_builtins(changed), text)
