"""`alpacactl acl`: access rules."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .commands import add_confirmation, add_verb, confirm, connect, group_name, topic_name, verbs_of
from .output import Output, Table, print_message
from .parsing import UsageError

if TYPE_CHECKING:
    from alpacamq.client.kafka.access import Acl, AclFilter, PatternType, ResourceType

    from .yaml import Plain

OPERATIONS = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster-action",
    "describe-configs",
    "alter-configs",
    "idempotent-write",
    "create-tokens",
    "describe-tokens",
)
_LISTED = ", ".join(OPERATIONS)
_USER = "User"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    listing = add_verb(
        verbs, common, "list", "list access rules, all or those about a resource or principal", _list,
        ["alpacactl acl list", "alpacactl acl list --topic orders", "alpacactl acl list --principal alice"],
    )  # fmt: skip
    _add_resources(listing)
    _add_filters(listing)
    adding = add_verb(
        verbs, common, "add", "allow or deny a principal operations on resources", _add,
        [
            "alpacactl acl add --principal alice --operation read --topic orders --group kitchen",
            "alpacactl acl add --principal alice --operation write --topic till- --prefix",
            "alpacactl acl add --principal bob --operation all --topic payments --deny",
        ],
    )  # fmt: skip
    _add_resources(adding)
    adding.add_argument(
        "--principal",
        type=_principal,
        action="append",
        required=True,
        metavar="PRINCIPAL",
        help="user name or TYPE:NAME; '*' is everyone; may be repeated",
    )
    adding.add_argument(
        "--operation",
        type=operation_name,
        choices=OPERATIONS,
        action="append",
        required=True,
        metavar="OPERATION",
        help=f"{_LISTED}; may be repeated",
    )
    adding.add_argument("--host", default="*", metavar="HOST", help="address of the client; all by default")
    adding.add_argument("--deny", action="store_true", help="deny instead of allow")
    removing = add_verb(
        verbs, common, "remove", "remove the access rules that match all given options", _remove,
        [
            "alpacactl acl remove --principal alice --operation read --topic orders --yes",
            "alpacactl acl remove --principal bob --yes",
        ],
    )  # fmt: skip
    _add_resources(removing)
    _add_filters(removing)
    add_confirmation(removing)


def _add_resources(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--topic", type=topic_name, action="append", metavar="TOPIC", help="'*' is all; may be repeated"
    )
    verb.add_argument(
        "--group", type=group_name, action="append", metavar="GROUP", help="'*' is all; may be repeated"
    )
    verb.add_argument("--transactional-id", action="append", metavar="ID", help="'*' is all; may be repeated")
    verb.add_argument("--delegation-token", action="append", metavar="ID", help="'*' is all; may be repeated")
    verb.add_argument(
        "--user-principal",
        type=_user_resource,
        action="append",
        metavar="PRINCIPAL",
        help="user whose delegation tokens are meant; '*' is all; may be repeated",
    )
    verb.add_argument("--cluster", action="store_true", help="the cluster itself")
    verb.add_argument(
        "--prefix", action="store_true", help="names are the beginnings of names, not whole names"
    )


def _add_filters(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--principal", type=_principal, metavar="PRINCIPAL", help="user name or TYPE:NAME")
    verb.add_argument(
        "--operation", type=operation_name, choices=OPERATIONS, metavar="OPERATION", help=_LISTED
    )
    verb.add_argument("--host", metavar="HOST", help="address of the client, as in the rule")
    verb.add_argument("--deny", action="store_true", help="only rules that deny")


def _principal(text: str) -> str:
    return text if ":" in text else f"{_USER}:{text}"


def _user_resource(text: str) -> str:
    return text if text == "*" else _principal(text)


def operation_name(text: str) -> str:
    """Return the name of an operation; underscores and capitals are accepted, as in DESCRIBE_CONFIGS."""
    return text.lower().replace("_", "-")


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import PatternType, list_acls

    with connect(parsed) as cluster:
        # Those that apply to a resource of this name, which are more than those with this name.
        found = [acl for wanted in _filters(parsed, PatternType.MATCH) for acl in list_acls(cluster, wanted)]
    _show(output, found)


def _add(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import Acl, Operation, PatternType, Permission, create_acls

    pattern = PatternType.PREFIXED if parsed.prefix else PatternType.LITERAL
    permission = Permission.DENY if parsed.deny else Permission.ALLOW
    resources = list(_resources(parsed))
    if not resources:
        raise UsageError(
            "name a resource: --topic, --group, --transactional-id, --delegation-token, --user-principal or "
            "--cluster"
        )
    acls = [
        Acl(kind, name, pattern, principal, parsed.host, Operation[_enum_name(operation)], permission)
        for kind, name in resources
        for principal in parsed.principal
        for operation in parsed.operation
    ]
    with connect(parsed) as cluster:
        create_acls(cluster, acls)
    _show(output, acls)
    print_message(f"added {len(acls)} {'rule' if len(acls) == 1 else 'rules'}")


def _remove(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import AclFilter, PatternType, delete_acls, list_acls

    filters = list(_filters(parsed, PatternType.LITERAL))
    if filters == [AclFilter()]:
        raise UsageError("say which rules: by resource, --principal, --operation, --host or --deny")
    with connect(parsed) as cluster:
        count = sum(len(list_acls(cluster, wanted)) for wanted in filters)
        if count:
            confirm(parsed, f"remove {count} {'rule' if count == 1 else 'rules'}")
        removed = [acl for wanted in filters for acl in delete_acls(cluster, wanted)]
    _show(output, removed)
    print_message(f"removed {len(removed)} {'rule' if len(removed) == 1 else 'rules'}")


def _filters(parsed: argparse.Namespace, pattern: "PatternType") -> Iterator["AclFilter"]:
    """Yield a filter for each named resource, or one for all; `pattern` is how names are compared."""
    from alpacamq.client.kafka.access import AclFilter, Operation, PatternType, Permission, ResourceType

    options = {
        "principal": parsed.principal,
        "host": parsed.host,
        "operation": Operation.ANY if parsed.operation is None else Operation[_enum_name(parsed.operation)],
        "permission": Permission.DENY if parsed.deny else Permission.ANY,
    }
    if parsed.prefix:
        pattern = PatternType.PREFIXED
    resources = list(_resources(parsed))
    for kind, name in resources:
        yield AclFilter(resource_type=kind, name=name, pattern_type=pattern, **options)
    if not resources:
        pattern = PatternType.PREFIXED if parsed.prefix else PatternType.ANY
        yield AclFilter(resource_type=ResourceType.ANY, pattern_type=pattern, **options)


def _resources(parsed: argparse.Namespace) -> Iterator[tuple["ResourceType", str]]:
    from alpacamq.client.kafka.access import CLUSTER_NAME, ResourceType

    for kind, names in (
        (ResourceType.TOPIC, parsed.topic),
        (ResourceType.GROUP, parsed.group),
        (ResourceType.TRANSACTIONAL_ID, parsed.transactional_id),
        (ResourceType.DELEGATION_TOKEN, parsed.delegation_token),
        (ResourceType.USER, parsed.user_principal),
        (ResourceType.CLUSTER, [CLUSTER_NAME] if parsed.cluster else []),
    ):
        for name in names or ():
            yield kind, name


def _enum_name(operation: str) -> str:
    return operation.upper().replace("-", "_")


def _word(name: str) -> str:
    return name.lower().replace("_", "-")


def _show(output: Output, acls: Sequence["Acl"]) -> None:
    shown: list[dict[str, Plain]] = [
        {
            "resource": _word(acl.resource_type.name),
            "name": acl.name,
            "pattern": _word(acl.pattern_type.name),
            "principal": acl.principal,
            "host": acl.host,
            "operation": _word(acl.operation.name),
            "permission": _word(acl.permission.name),
        }
        for acl in acls
    ]
    output.show(
        shown,
        Table(
            ["resource", "name", "pattern", "principal", "host", "operation", "permission"],
            [list(each.values()) for each in shown],
        ),
    )
