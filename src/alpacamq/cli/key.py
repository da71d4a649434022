"""`alpacactl key`: API keys."""

import argparse
from typing import TYPE_CHECKING

from .acl import OPERATIONS, operation_name
from .cells import age
from .commands import add_confirmation, add_verb, confirm, connect_http, duration, verbs_of
from .output import Output, Table

if TYPE_CHECKING:
    from alpacamq.wire.keys import CreatedKey

SCOPES = (*(each for each in OPERATIONS if each != "all"), "two-phase-commit")


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "list", "list API keys, without their secrets", _list,
        ["alpacactl key list", "alpacactl key list -o json"],
    )  # fmt: skip
    create = add_verb(
        verbs, common, "create", "create an API key, whose secret is shown once", _create,
        [
            "alpacactl key create --owner reports --scope read --expires 90d",
            "alpacactl key create --owner shop --description 'web shop'",
        ],
    )  # fmt: skip
    create.add_argument("--owner", metavar="USER", help="the user it acts for (the user that logs in)")
    create.add_argument(
        "--expires", type=duration, metavar="DURATION", help="let it expire after this time, such as 90d"
    )
    create.add_argument(
        "--scope",
        type=operation_name,
        action="append",
        choices=SCOPES,
        default=[],
        metavar="OPERATION",
        help=f"limit it to {', '.join(SCOPES)}; may be repeated",
    )
    create.add_argument("--description", metavar="TEXT", default="", help="what it is for")
    rotate = add_verb(
        verbs, common, "rotate",
        "replace an API key by a new one; the old one keeps working for a time", _rotate,
        ["alpacactl key rotate KEY", "alpacactl key rotate KEY --overlap 1h"],
    )  # fmt: skip
    rotate.add_argument("id", metavar="ID")
    rotate.add_argument(
        "--overlap",
        type=duration,
        default="7d",
        metavar="DURATION",
        help="how long the old key keeps working (default: 7d)",
    )
    delete = add_verb(
        verbs, common, "delete", "delete an API key", _delete, ["alpacactl key delete KEY --yes"]
    )
    delete.add_argument("id", metavar="ID")
    add_confirmation(delete)


def _list(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.administration import list_keys

    with connect_http(parsed) as api:
        keys = list_keys(api)
    rows = [
        [
            each.id,
            each.owner,
            ",".join(each.scopes) or "all",
            age(each.created),
            age(each.expires),
            age(each.last_used),
            each.description or None,
        ]
        for each in keys
    ]
    columns = ["id", "owner", "scopes", "created", "expires", "last used", "description"]
    output.show(msgspec.to_builtins(keys), Table(columns, rows, title="API keys"))


def _create(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import create_key

    with connect_http(parsed) as api:
        created = create_key(
            api,
            owner=parsed.owner,
            expires_in_ms=parsed.expires,
            scopes=parsed.scope,
            description=parsed.description,
        )
    _show_created(created, output)


def _rotate(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import rotate_key

    with connect_http(parsed) as api:
        created = rotate_key(api, parsed.id, overlap_ms=parsed.overlap)
    _show_created(created, output)


def _show_created(created: "CreatedKey", output: Output) -> None:
    import msgspec

    rows = [
        ["key", created.key],
        ["AWS access key id", created.id],
        ["AWS secret access key", created.aws_secret_access_key],
    ]
    output.show(msgspec.to_builtins(created), Table(["shown once", "value"], rows))


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.administration import delete_key

    with connect_http(parsed) as api:
        confirm(parsed, f"delete the API key {parsed.id}")
        delete_key(api, parsed.id)
    output.done({"deleted": parsed.id}, f"deleted API key {parsed.id}")
