"""`alpacactl schema`: subjects of the schema registry, their versions and settings."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .commands import add_confirmation, add_verb, confirm, connect_http, count, subject_name, verbs_of
from .output import Output, Table, print_message
from .parsing import CommandError, UsageError
from .progress import ProgressBar

if TYPE_CHECKING:
    from alpacamq.client.http.schema_transfer import Content
    from alpacamq.client.http.schemas import SchemaRegistry, SchemaText, StoredSchema
    from alpacamq.registry.schema import Reference

# As the registry names them; here, so that it is not imported for the help.
_LEVELS = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
_MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
_TYPES = ("AVRO", "JSON", "PROTOBUF")
_TYPES_BY_SUFFIX = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
_STANDARD_INPUT = "-"
_LATEST = "latest"


def add_to(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    verbs = verbs_of(parser)
    listing = add_verb(
        verbs, common, "list", "list subjects with their latest version, or all versions of one", _list,
        [
            "alpacactl schema list",
            "alpacactl schema list orders-value",
            "alpacactl schema list --prefix shop.",
        ],
    )  # fmt: skip
    listing.add_argument("subject", nargs="?", type=subject_name, help="list all versions of this subject")
    listing.add_argument("--prefix", metavar="TEXT", help="only subjects whose names begin with this")
    listing.add_argument("--deleted", action="store_true", help="also those that are deleted")

    get = add_verb(
        verbs, common, "get", "print a schema", _get,
        [
            "alpacactl schema get orders-value",
            "alpacactl schema get orders-value --version 1 -o json",
            "alpacactl schema get --id 7",
        ],
    )  # fmt: skip
    get.add_argument("subject", nargs="?", type=subject_name)
    get.add_argument("--version", metavar="N", default=_LATEST, help="default: latest")
    get.add_argument("--id", type=count, metavar="N", help="the schema of this id, whatever its subject")

    register = add_verb(
        verbs, common, "register", "register a schema as a new version of a subject", _register,
        [
            "alpacactl schema register orders-value --file order.avsc",
            "alpacactl schema register orders-value --file order.avsc --dry-run",
            "alpacactl schema register orders-value --file order.avsc --reference shop.Money=money:1",
        ],
    )  # fmt: skip
    _add_schema(register)
    register.add_argument("--dry-run", action="store_true", help="only print what would be done")

    check = add_verb(
        verbs, common, "check", "check whether a schema is compatible with a subject", _check,
        [
            "alpacactl schema check orders-value --file order.avsc",
            "alpacactl schema check orders-value --file order.avsc --version 1",
        ],
    )  # fmt: skip
    _add_schema(check)
    check.add_argument("--version", metavar="N", help="a single version (default: by the subject's level)")

    delete = add_verb(
        verbs, common, "delete", "delete a subject or one of its versions", _delete,
        [
            "alpacactl schema delete orders-value --version 1 --yes",
            "alpacactl schema delete orders-value --permanent --yes",
        ],
    )  # fmt: skip
    delete.add_argument("subject", type=subject_name)
    delete.add_argument("--version", metavar="N", help="only this version")
    delete.add_argument(
        "--permanent", action="store_true", help="for good; what is not deleted yet is deleted first"
    )
    delete.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    add_confirmation(delete)

    config = add_verb(
        verbs, common, "config", "show or change compatibility, of a subject or of all", _config,
        [
            "alpacactl schema config",
            "alpacactl schema config orders-value --compatibility FULL",
            "alpacactl schema config orders-value --reset",
        ],
    )  # fmt: skip
    config.add_argument("subject", nargs="?", type=subject_name, help="default: all subjects")
    change = config.add_mutually_exclusive_group()
    change.add_argument(
        "--compatibility", type=str.upper, choices=_LEVELS, metavar="LEVEL", help=", ".join(_LEVELS)
    )
    change.add_argument(
        "--reset", action="store_true", help="delete the setting, so that the global one applies"
    )
    config.add_argument("--normalize", choices=("true", "false"), help="register schemas in normal form")

    mode = add_verb(
        verbs, common, "mode", "show or change the mode, of a subject or of all", _mode,
        [
            "alpacactl schema mode",
            "alpacactl schema mode orders-value --set READONLY",
            "alpacactl schema mode orders-value --reset",
        ],
    )  # fmt: skip
    mode.add_argument("subject", nargs="?", type=subject_name, help="default: all subjects")
    change = mode.add_mutually_exclusive_group()
    change.add_argument("--set", type=str.upper, choices=_MODES, metavar="MODE", help=", ".join(_MODES))
    change.add_argument(
        "--reset", action="store_true", help="delete the mode, so that the global one applies"
    )
    mode.add_argument("--force", action="store_true", help="set IMPORT even if there are schemas")

    diff = add_verb(
        verbs, common, "diff", "compare two versions of a subject, and their compatibility", _diff,
        ["alpacactl schema diff orders-value", "alpacactl schema diff orders-value 1 3"],
    )  # fmt: skip
    diff.add_argument("subject", type=subject_name)
    diff.add_argument("old", nargs="?", metavar="OLD", help="default: the version before the new one")
    diff.add_argument("new", nargs="?", metavar="NEW", help="default: the latest version")

    export = add_verb(
        verbs, common, "export", "write all schemas and settings as lines of JSON", _export,
        ["alpacactl schema export --file schemas.jsonl", "alpacactl schema export > schemas.jsonl"],
    )  # fmt: skip
    export.add_argument("--file", metavar="PATH", default=_STANDARD_INPUT, help="default: standard output")

    importing = add_verb(
        verbs, common, "import", "read schemas and settings into an empty registry, with their ids", _import,
        [
            "alpacactl schema import --file schemas.jsonl --dry-run",
            "alpacactl schema import --from http://localhost:8085 --dry-run",
        ],
    )  # fmt: skip
    source = importing.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--file", metavar="PATH", help="an export, or records of _schemas; - for standard input"
    )
    source.add_argument("--from", dest="url", metavar="URL", help="another registry with Confluent's API")
    importing.add_argument("--force", action="store_true", help="even if the registry has schemas")
    importing.add_argument(
        "--dry-run", action="store_true", help="only read, and print what would be written"
    )


def _add_schema(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("subject", type=subject_name)
    verb.add_argument("--file", metavar="PATH", required=True, help="the schema; - for standard input")
    verb.add_argument(
        "--type", type=str.upper, choices=_TYPES, metavar="TYPE",
        help="AVRO, JSON or PROTOBUF (default: by the file's name: .avsc, .json, .proto; otherwise AVRO)",
    )  # fmt: skip
    verb.add_argument(
        "--reference", action="append", default=[], metavar="NAME=SUBJECT:VERSION",
        help="a schema that this one uses, under the name it uses; may be repeated",
    )  # fmt: skip
    verb.add_argument("--normalize", action="store_true", help="compare and register it in normal form")


@contextmanager
def _registry(parsed: argparse.Namespace) -> "Iterator[SchemaRegistry]":
    from alpacamq.client.http.schemas import SchemaRegistry

    with SchemaRegistry(connect_http(parsed)) as registry:
        yield registry


def _list(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    with _registry(parsed) as registry:
        if parsed.subject is None:
            every = list(registry.schemas(_prefix(parsed.prefix), deleted=parsed.deleted, latest_only=True))
        else:
            numbers = registry.versions(parsed.subject, deleted=parsed.deleted)
            every = [registry.version(parsed.subject, each, deleted=True) for each in numbers]
    rows = [
        [each.subject, each.version, each.id, each.schema_type.value, len(each.references or ())]
        for each in every
    ]
    columns = ["subject", "version", "id", "type", "references"]
    title = "subjects" if parsed.subject is None else f"versions of {parsed.subject}"
    output.show(msgspec.to_builtins(every), Table(columns, rows, title=title))


def _prefix(text: str | None) -> str:
    """Return what subjects begin with: in all contexts, unless the text names one."""
    from alpacamq.registry.subjects import ANY_CONTEXT

    text = text or ""
    return text if text.startswith(":") else f"{ANY_CONTEXT}{text}"


def _get(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    if (parsed.subject is None) == (parsed.id is None):
        raise UsageError("name either a subject or --id N")
    with _registry(parsed) as registry:
        if parsed.id is not None:
            found = registry.schema(parsed.id)
        else:
            found = registry.version(parsed.subject, parsed.version, deleted=parsed.version != _LATEST)
    if output.form == "table":
        print(_readable(found))
    else:
        output.show(msgspec.to_builtins(found))


def _readable(stored: "StoredSchema") -> str:
    """Return the text of a schema: JSON indented, Protobuf as it is."""
    import json

    from alpacamq.cli.cells import escape_controls

    try:
        text = json.dumps(json.loads(stored.schema), indent=2, ensure_ascii=False)
    except ValueError:
        text = stored.schema.rstrip()
    return escape_controls(text)


def _register(parsed: argparse.Namespace, output: Output) -> None:
    text = _schema_text(parsed)
    subject = parsed.subject
    with _registry(parsed) as registry:
        known = registry.look_up(subject, text, normalize=parsed.normalize)
        if known is not None:
            data = {"subject": subject, "id": known.id, "version": known.version, "registered": False}
            output.done(
                data, f"subject {subject} has this schema already: version {known.version}, id {known.id}"
            )
            return
        if parsed.dry_run:
            _require_compatible(registry, parsed, text)
            output.done(
                {"subject": subject, "registered": False, "is_compatible": True},
                f"would register a new version of subject {subject}; nothing was changed",
            )
            return
        schema_id = registry.register(subject, text, normalize=parsed.normalize)
        found = registry.look_up(subject, text, normalize=parsed.normalize)
        version = None if found is None else found.version
    output.done(
        {"subject": subject, "id": schema_id, "version": version, "registered": True},
        f"registered version {version} of subject {subject} with id {schema_id}",
    )


def _check(parsed: argparse.Namespace, output: Output) -> None:
    text = _schema_text(parsed)
    with _registry(parsed) as registry:
        if parsed.version is not None:
            registry.version(parsed.subject, parsed.version)  # NotFound rather than compatible
        answer = registry.check(parsed.subject, text, parsed.version, normalize=parsed.normalize)
    reasons = list(answer.messages)
    against = f"version {parsed.version} of " if parsed.version is not None else ""
    if output.form != "table":
        output.show(
            {"subject": parsed.subject, "is_compatible": answer.is_compatible, "messages": [*reasons]}
        )
    if not answer.is_compatible:
        raise CommandError(_incompatible(f"{against}subject {parsed.subject}", reasons))
    if output.form == "table":
        print_message(f"compatible with {against}subject {parsed.subject}")


def _require_compatible(registry: "SchemaRegistry", parsed: argparse.Namespace, text: "SchemaText") -> None:
    answer = registry.check(parsed.subject, text, normalize=parsed.normalize)
    if not answer.is_compatible:
        raise CommandError(_incompatible(f"subject {parsed.subject}", list(answer.messages)))


def _incompatible(what: str, reasons: list[str]) -> str:
    return "\n  ".join([f"not compatible with {what}", *reasons])


def _schema_text(parsed: argparse.Namespace) -> "SchemaText":
    from alpacamq.client.http.schemas import SchemaText
    from alpacamq.registry.schema import SchemaType

    guessed = _TYPES_BY_SUFFIX.get(Path(parsed.file).suffix.lower(), _TYPES[0])
    try:
        schema = _read(parsed.file).decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{parsed.file} is not UTF-8: {error.reason} at byte {error.start}") from None
    return SchemaText(
        schema=schema,
        schema_type=SchemaType(parsed.type or guessed),
        references=tuple(map(_reference, parsed.reference)),
    )


def _reference(text: str) -> "Reference":
    from alpacamq.registry.schema import Reference

    name, equals, target = text.partition("=")
    subject, colon, version = target.rpartition(":")
    if not (equals and colon and name and subject and version.isascii() and version.isdigit()):
        raise UsageError(f"--reference {text!r} must have the form NAME=SUBJECT:VERSION")
    return Reference(name, subject, int(version))


def _read(path: str) -> bytes:
    if path == _STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        from alpacamq.client.errors import NotFound

        raise NotFound("file", path) from None


def _delete(parsed: argparse.Namespace, output: Output) -> None:
    subject = parsed.subject
    with _registry(parsed) as registry:
        kept = set(registry.versions(subject, deleted=False)) if subject in registry.subjects() else set()
        every = registry.versions(subject, deleted=True) if parsed.permanent else sorted(kept)
        if parsed.version is not None:
            number = registry.version(subject, parsed.version, deleted=parsed.permanent).version
            every = [each for each in every if each == number]
        elif not every:
            registry.versions(subject)  # NotFound
        numbers = ", ".join(map(str, every))
        what = f"version{'s' if len(every) > 1 else ''} {numbers} of subject {subject}"
        for_good = " for good" if parsed.permanent else ""
        if parsed.dry_run:
            data = {"subject": subject, "versions": [*every], "permanent": parsed.permanent, "deleted": False}
            output.done(data, f"would delete {what}{for_good}; nothing was changed")
            return
        confirm(parsed, f"delete {what}{for_good}")
        if parsed.version is None:
            if kept:
                registry.delete_subject(subject)
            if parsed.permanent:
                registry.delete_subject(subject, permanent=True)
        else:
            for each in every:
                if each in kept:
                    registry.delete_version(subject, each)
                if parsed.permanent:
                    registry.delete_version(subject, each, permanent=True)
    output.done(
        {"subject": subject, "versions": [*every], "permanent": parsed.permanent, "deleted": True},
        f"deleted {what}{for_good}",
    )


def _config(parsed: argparse.Namespace, output: Output) -> None:
    fields: dict[str, Any] = {}
    if parsed.compatibility is not None:
        fields["compatibility"] = parsed.compatibility
    if parsed.normalize is not None:
        fields["normalize"] = parsed.normalize == "true"
    if parsed.reset and fields:
        raise UsageError("--reset goes with no other change")
    with _registry(parsed) as registry:
        if parsed.reset:
            registry.delete_config(parsed.subject)
        elif fields:
            registry.set_config(parsed.subject, fields)
        own = registry.config(parsed.subject)
        found = registry.config(parsed.subject, inherited=True) or {}
    _show_setting(parsed.subject, found, is_own=own is not None, output=output)


def _mode(parsed: argparse.Namespace, output: Output) -> None:
    with _registry(parsed) as registry:
        if parsed.reset:
            registry.delete_mode(parsed.subject)
        elif parsed.set is not None:
            registry.set_mode(parsed.subject, parsed.set, force=parsed.force)
        own = registry.mode(parsed.subject)
        found = registry.mode(parsed.subject, inherited=True)
    _show_setting(parsed.subject, {"mode": found}, is_own=own is not None, output=output)


def _show_setting(subject: str | None, found: dict[str, Any], *, is_own: bool, output: Output) -> None:
    where = subject if subject is not None and is_own else "all subjects"
    rows = [
        [name, value if isinstance(value, str | int) else str(value), where] for name, value in found.items()
    ]
    data = {"subject": subject, **found, "is_inherited": subject is not None and not is_own}
    output.show(data, Table(["setting", "value", "set for"], rows))


def _diff(parsed: argparse.Namespace, output: Output) -> None:
    from difflib import unified_diff

    from alpacamq.client.http.schemas import SchemaCodec

    with _registry(parsed) as registry:
        new = registry.version(parsed.subject, parsed.new or _LATEST, deleted=parsed.new is not None)
        old = registry.version(parsed.subject, _older(registry, parsed, new), deleted=True)
        comparisons = _comparisons(SchemaCodec(registry), old, new)
    lines = list(
        unified_diff(
            _readable(old).splitlines(),
            _readable(new).splitlines(),
            f"{parsed.subject} version {old.version}",
            f"{parsed.subject} version {new.version}",
            lineterm="",
        )
    )
    if output.form == "table":
        print("\n".join(lines) if lines else f"versions {old.version} and {new.version} have the same schema")
        print()
    rows = [
        [
            name,
            "yes" if not reasons else "no",
            "; ".join(f"{each['path']}: {each['message']}" for each in reasons) or None,
        ]
        for name, reasons in comparisons.items()
    ]
    data = {
        "subject": parsed.subject,
        "old": old.version,
        "new": new.version,
        "diff": [*lines],
        **{
            name: {"is_compatible": not reasons, "incompatibilities": [*reasons]}
            for name, reasons in comparisons.items()
        },
    }
    output.show(data, Table(["compatibility", "compatible", "why not"], rows))


def _older(registry: "SchemaRegistry", parsed: argparse.Namespace, new: "StoredSchema") -> int | str:
    """Return the version to compare with."""
    if parsed.old is not None:
        return str(parsed.old)
    before = [each for each in registry.versions(parsed.subject) if new.version and each < new.version]
    if not before:
        raise CommandError(f"subject {parsed.subject} has no version before {new.version}")
    return before[-1]


def _comparisons(codec: Any, old: "StoredSchema", new: "StoredSchema") -> dict[str, list[dict[str, str]]]:
    """Return why each schema cannot read data of the other; nothing means that it can."""
    import msgspec

    if old.schema_type is not new.schema_type:
        why = {"rule": "SCHEMA_TYPE", "path": "", "message": f"{old.schema_type} is not {new.schema_type}"}
        return {"backward": [why], "forward": [why]}
    older, newer = (codec.of_version(each.subject, each.version) for each in (old, new))
    return {
        "backward": msgspec.to_builtins(list(newer.incompatibilities(older))),
        "forward": msgspec.to_builtins(list(older.incompatibilities(newer))),
    }


def _export(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.schema_transfer import read_registry

    with _registry(parsed) as registry, _progress("reading subjects") as show:
        content = read_registry(registry, show)
    lines = b"".join(line + b"\n" for line in content.lines())
    summary = content.summary()
    if parsed.file == _STANDARD_INPUT:
        sys.stdout.buffer.write(lines)
        print_message(f"exported {_summary(content)}")
        return
    Path(parsed.file).write_bytes(lines)
    output.done(
        {"file": parsed.file, **msgspec.to_builtins(summary)},
        f"exported {_summary(content)} to {parsed.file}",
    )


def _import(parsed: argparse.Namespace, output: Output) -> None:
    import msgspec

    from alpacamq.client.http.schema_transfer import write_registry

    content = _content(parsed)
    data: dict[str, Any] = msgspec.to_builtins(content.summary())
    if parsed.dry_run:
        output.done({**data, "imported": False}, f"would import {_summary(content)}; nothing was changed")
        return
    with _registry(parsed) as registry:
        if not parsed.force and (known := registry.subjects(deleted=True)):
            raise CommandError(f"the registry has {len(known)} subjects already; use --force to add to them")
        with _progress("writing versions") as show:
            write_registry(registry, content, force=parsed.force, progress=show)
    output.done({**data, "imported": True}, f"imported {_summary(content)}")


def _content(parsed: argparse.Namespace) -> "Content":
    from alpacamq.client.http.schema_transfer import read_lines, read_registry

    if parsed.url is None:
        return read_lines(_read(parsed.file).split(b"\n"))
    from alpacamq.client.http.schemas import registry_at

    try:
        source = registry_at(parsed.url, parsed.target.tls)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from None
    with source, _progress("reading subjects") as show:
        return read_registry(source, show)


@contextmanager
def _progress(what: str) -> Iterator[Any]:
    """Yield a function that shows how much is done."""
    bar: ProgressBar | None = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or ProgressBar(what, total)
        bar.at(done)

    try:
        yield show
    finally:
        if bar is not None:
            bar.end()


def _summary(content: "Content") -> str:
    found = content.summary()
    deleted = f" ({found.deleted_versions} deleted)" if found.deleted_versions else ""
    return (
        f"{found.subjects} subjects with {found.versions} versions{deleted}, "
        f"{found.configurations} configurations and {found.modes} modes"
    )
