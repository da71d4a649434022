"""`alpacactl token`: delegation tokens."""

import argparse
from typing import TYPE_CHECKING

from .cells import age
from .commands import add_confirmation, add_verb, confirm, connect, duration, verbs_of
from .output import Output, Table

if TYPE_CHECKING:
    from alpacamq.client.kafka.access import Token

    from .yaml import Plain


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    listing = add_verb(
        verbs, common, "list", "list delegation tokens, without their HMACs", _list,
        ["alpacactl token list", "alpacactl token list --owner alice"],
    )  # fmt: skip
    listing.add_argument("--owner", metavar="USER", help="only tokens of this owner, requester or renewer")
    create = add_verb(
        verbs, common, "create", "create a delegation token", _create,
        [
            "alpacactl token create --max-lifetime 12h",
            "alpacactl token create --owner alice --renewer scheduler",
        ],
    )  # fmt: skip
    create.description = (
        "Create a delegation token. Clients log in with SCRAM: its id is the user name and its HMAC the "
        "password, with the extension tokenauth=true."
    )
    create.add_argument("--owner", metavar="USER", help="the user it acts for (the user that logs in)")
    create.add_argument(
        "--renewer",
        action="append",
        default=[],
        metavar="USER",
        help="user who may renew and end it, besides its owner; may be repeated",
    )
    create.add_argument(
        "--max-lifetime",
        type=duration,
        metavar="DURATION",
        help="let it expire after this time, such as 12h, however often it is renewed "
        "(security.delegation_token_max_lifetime_ms)",
    )
    renew = add_verb(
        verbs, common, "renew", "extend the time of a delegation token", _renew,
        ["alpacactl token renew TOKEN", "alpacactl token renew TOKEN --period 2h"],
    )  # fmt: skip
    renew.add_argument("id", metavar="ID")
    renew.add_argument(
        "--period",
        type=duration,
        metavar="DURATION",
        help="from now on (security.delegation_token_expiry_time_ms)",
    )
    expire = add_verb(
        verbs, common, "expire", "end a delegation token", _expire,
        ["alpacactl token expire TOKEN --yes", "alpacactl token expire TOKEN --period 10m --yes"],
    )  # fmt: skip
    expire.add_argument("id", metavar="ID")
    expire.add_argument(
        "--period", type=duration, metavar="DURATION", help="let it expire after this time instead of now"
    )
    add_confirmation(expire)


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import list_tokens

    with connect(parsed) as cluster:
        tokens = list_tokens(cluster, parsed.owner)
    rows = [
        [
            each.id,
            each.owner,
            each.requester,
            ",".join(each.renewers) or None,
            age(each.issued_ms),
            age(each.expires_ms),
            age(each.max_ms),
        ]
        for each in tokens
    ]
    columns = ["id", "owner", "requester", "renewers", "created", "expires", "latest"]
    output.show([_plain(each) for each in tokens], Table(columns, rows))


def _create(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import DEFAULT_MS, create_token

    with connect(parsed) as cluster:
        token = create_token(
            cluster,
            owner=parsed.owner,
            renewers=parsed.renewer,
            max_lifetime_ms=parsed.max_lifetime or DEFAULT_MS,
        )
    rows = [["id", token.id], ["HMAC", token.password], ["owner", token.owner]]
    output.show({**_plain(token), "hmac": token.password}, Table(["token", "value"], rows))


def _renew(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import DEFAULT_MS, find_token, renew_token

    with connect(parsed) as cluster:
        expires_ms = renew_token(cluster, find_token(cluster, parsed.id), parsed.period or DEFAULT_MS)
    output.done({"id": parsed.id, "expires": expires_ms}, f"renewed delegation token {parsed.id}")


def _expire(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import DEFAULT_MS, expire_token, find_token

    period_ms = DEFAULT_MS if parsed.period is None else parsed.period
    with connect(parsed) as cluster:
        token = find_token(cluster, parsed.id)
        confirm(parsed, f"end the delegation token {parsed.id} of {token.owner}")
        expires_ms = expire_token(cluster, token, period_ms)
    deed = "ended" if parsed.period is None else "set the end of"
    output.done({"id": parsed.id, "expires": expires_ms}, f"{deed} delegation token {parsed.id}")


def _plain(token: "Token") -> "dict[str, Plain]":
    return {
        "id": token.id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": token.issued_ms,
        "expires": token.expires_ms,
        "latest": token.max_ms,
    }
