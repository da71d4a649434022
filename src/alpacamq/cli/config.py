"""`alpacactl config`: named brokers (contexts) and the current one."""

import argparse
from dataclasses import replace
from pathlib import Path

from .commands import add_confirmation, add_verb, confirm, http_addresses, verbs_of
from .contexts import Context, check_name, write
from .output import Output, Table
from .parsing import UsageError
from .target import Target


def context_name(text: str) -> str:
    """Argument type of context names, which the shell completes."""
    return text


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    add_verb(
        verbs, common, "show", "show the effective broker and the source of each setting", _show,
        ["alpacactl config show", "alpacactl config show --context cafe -o json"],
    )  # fmt: skip
    add_verb(
        verbs, common, "get-contexts", "list contexts", _list,
        ["alpacactl config get-contexts"],
    )  # fmt: skip

    put = add_verb(
        verbs, common, "set", "create or change a context", _set,
        [
            "alpacactl config set cafe --http 127.0.0.1:8080",
            "alpacactl config set cafe --broker 127.0.0.1:9092",
            "alpacactl config set cafe --user alice --password-file ~/.cafe-password",
            "alpacactl config set cafe --ca ca.pem --cert alice.pem --key alice.key",
        ],
    )  # fmt: skip
    put.description = (
        "Store the addresses given with --http and --broker under a name. With --http alone, the Kafka "
        "address is requested from the broker. --user, --password-file, --sasl-mechanism, --tls, --ca, "
        "--cert and --key are stored as well; passwords and keys themselves are not. The first context "
        "becomes the current one."
    )
    put.add_argument("name", type=context_name)

    use = add_verb(
        verbs, common, "use", "select the current context", _use,
        ["alpacactl config use cafe"],
    )  # fmt: skip
    use.add_argument("name", type=context_name)

    delete = add_verb(
        verbs, common, "delete", "delete a context", _delete, ["alpacactl config delete cafe --yes"]
    )
    delete.add_argument("name", type=context_name)
    add_confirmation(delete)


def _show(parsed: argparse.Namespace, output: Output) -> None:
    target: Target = parsed.target
    http, broker = target.http, target.broker
    rows = {
        "context": (target.context_name, "--context" if parsed.context else str(target.file)),
        "http": (http.address, http.where),
        "broker": (None, f"requested from {http.address}")
        if broker is None
        else (broker.address, broker.where),
        "user": target.user_source,
        "tls": ("yes" if target.tls is not None else None, target.tls_source),
    }
    output.show(
        {name: {"value": value, "from": where} for name, (value, where) in rows.items()},
        Table(["setting", "value", "from"], [[name, *row] for name, row in rows.items()]),
    )


def _list(parsed: argparse.Namespace, output: Output) -> None:
    contexts = parsed.target.contexts
    listed = [
        {
            "name": name,
            "current": name == contexts.current,
            "http": context.http,
            "broker": context.broker,
            "user": context.user,
        }
        for name, context in sorted(contexts.by_name.items())
    ]
    output.show(
        listed,
        Table(
            ["current", "name", "http", "broker", "user"],
            [
                ["*" if each["current"] else " ", each["name"], each["http"], each["broker"], each["user"]]
                for each in listed
            ],
        ),
    )


def _set(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.connect import parse_addresses

    check_name(parsed.name)
    said = (parsed.http, parsed.broker, parsed.user, parsed.password_file, parsed.sasl_mechanism)
    if not any((*said, parsed.tls, parsed.ca, parsed.cert, parsed.key_file)):
        raise UsageError("nothing to store: give --http HOST:PORT, --broker HOST:PORT or --user NAME")
    http = None
    if parsed.http is not None:
        scheme = "https://" if parsed.http.startswith("https://") else ""
        http = scheme + ",".join(map(str, http_addresses(parsed)))
    try:
        broker = None if parsed.broker is None else ",".join(map(str, parse_addresses(parsed.broker)))
    except ValueError as error:
        raise UsageError(f"--broker: {error}") from None
    target: Target = parsed.target
    before = target.contexts.by_name.get(parsed.name, Context())
    password_file = _absolute(parsed.password_file)
    if parsed.user not in (None, before.user):
        before = replace(before, password_file=None)  # of another user
    context = Context(
        http=http or before.http,
        broker=broker or before.broker,
        user=parsed.user or before.user,
        password_file=password_file or before.password_file,
        mechanism=parsed.sasl_mechanism or before.mechanism,
        tls="true" if parsed.tls else before.tls,
        ca=_absolute(parsed.ca) or before.ca,
        cert=_absolute(parsed.cert) or before.cert,
        # Of the certificate that is stored with it.
        key=_absolute(parsed.key_file) or (None if parsed.cert else before.key),
    )
    if context.password_file and not context.user:
        raise UsageError("--password-file needs --user NAME")
    contexts = target.contexts.with_context(parsed.name, context)
    write(target.file, contexts)
    current = ", the current one" if contexts.current == parsed.name else ""
    output.done(
        {
            "name": parsed.name,
            "http": context.http,
            "broker": context.broker,
            "user": context.user,
            "file": str(target.file),
        },
        f"stored context {parsed.name}{current} in {target.file}",
    )


def _absolute(path: str | None) -> str | None:
    """Return a path as it is stored: commands run in any directory."""
    return None if path is None else str(Path(path).absolute())


def _use(parsed: argparse.Namespace, output: Output) -> None:
    target: Target = parsed.target
    _check_known(target, parsed.name)
    write(target.file, replace(target.contexts, current=parsed.name))
    output.done({"current": parsed.name}, f"current context: {parsed.name}")


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    target: Target = parsed.target
    _check_known(target, parsed.name)
    confirm(parsed, f"delete the context {parsed.name}")
    write(target.file, target.contexts.without(parsed.name))
    output.done({"deleted": parsed.name}, f"deleted context {parsed.name}")


def _check_known(target: Target, name: str) -> None:
    from alpacamq.client.errors import NotFound

    if name not in target.contexts.by_name:
        raise NotFound("context", name, target.contexts.by_name)
