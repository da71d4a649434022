"""`alpacactl user`: users and their passwords."""

import argparse

from .commands import add_confirmation, add_verb, confirm, connect, count, verbs_of
from .output import Output, Table
from .parsing import CommandError
from .passwords import new_password

_FROM = "On a terminal it is typed twice; otherwise the first line of standard input is taken."


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(verbs, common, "list", "list users and how they can log in", _list, ["alpacactl user list"])
    create = add_verb(
        verbs, common, "create", "create a user", _create,
        [
            "alpacactl user create alice",
            "alpacactl user create alice --new-password-file alice.txt",
            "alpacactl user create alice --mechanism SCRAM-SHA-512 --iterations 8192 < alice.txt",
        ],
    )  # fmt: skip
    create.description = f"Create a user with a password. {_FROM}"
    _add_password(create)
    passwd = add_verb(
        verbs, common, "passwd", "change the password of a user", _passwd,
        ["alpacactl user passwd alice", "alpacactl user passwd alice --new-password-file alice.txt"],
    )  # fmt: skip
    passwd.description = (
        f"Change the password of a user, for every mechanism that it has. {_FROM} Open connections of the "
        "user stay open."
    )
    _add_password(passwd)
    delete = add_verb(
        verbs, common, "delete", "delete a user", _delete, ["alpacactl user delete alice --yes"]
    )
    delete.add_argument("name")
    add_confirmation(delete)


def _add_password(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name")
    verb.add_argument(
        "--new-password-file", metavar="FILE", help="file whose first line is the password of the user"
    )
    verb.add_argument(
        "--mechanism",
        action="append",
        choices=["SCRAM-SHA-256", "SCRAM-SHA-512"],
        help="how the user can log in, besides PLAIN; may be repeated (default: both)",
    )
    verb.add_argument(
        "--iterations",
        type=count,
        metavar="N",
        help="how often the password is hashed, 4096 to 16384 (default: 4096)",
    )


def _list(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import list_users

    with connect(parsed) as cluster:
        users = list_users(cluster)
    output.show(
        [
            {"name": each.name, "iterations": {str(kind): n for kind, n in each.iterations.items()}}
            for each in users
        ],
        Table(
            ["name", "mechanism", "iterations"],
            [[each.name, str(kind), n] for each in users for kind, n in each.iterations.items()],
        ),
    )


def _create(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import DEFAULT_ITERATIONS, Mechanism, find_user, set_password

    mechanisms = [Mechanism(each) for each in parsed.mechanism or Mechanism]
    with connect(parsed) as cluster:
        if find_user(cluster, parsed.name) is not None:
            raise CommandError(
                f"user {parsed.name} exists; `alpacactl user passwd {parsed.name}` changes its password"
            )
        password = new_password(parsed.new_password_file, parsed.name)
        set_password(cluster, parsed.name, password, mechanisms, parsed.iterations or DEFAULT_ITERATIONS)
    output.done(
        {"name": parsed.name, "mechanisms": list(map(str, mechanisms))}, f"created user {parsed.name}"
    )


def _passwd(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import DEFAULT_ITERATIONS, Mechanism, known_user, set_password

    with connect(parsed) as cluster:
        # All of them: the old password must not stay valid for one.
        known = known_user(cluster, parsed.name).iterations
        mechanisms = sorted({*known, *map(Mechanism, parsed.mechanism or ())})
        iterations = parsed.iterations or max(known.values(), default=DEFAULT_ITERATIONS)
        password = new_password(parsed.new_password_file, parsed.name)
        set_password(cluster, parsed.name, password, mechanisms, iterations)
    output.done(
        {"name": parsed.name, "mechanisms": list(map(str, mechanisms))},
        f"changed the password of user {parsed.name}",
    )


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.kafka.access import delete_user, known_user

    with connect(parsed) as cluster:
        known_user(cluster, parsed.name)
        confirm(parsed, f"delete the user {parsed.name}")
        delete_user(cluster, parsed.name)
    output.done({"deleted": parsed.name}, f"deleted user {parsed.name}")
