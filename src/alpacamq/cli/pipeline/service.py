"""`alpacactl pipeline start`, `stop` and `restart`: pipelines as services of this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from alpacamq.cli.commands import add_verb, duration
from alpacamq.cli.output import Output, Table, print_message
from alpacamq.cli.parsing import CommandError, UsageError

from .loading import TRIGGER_HELP, loaded, need_spark

if TYPE_CHECKING:
    from alpacamq.cli.yaml import Plain
    from alpacamq_spark.pipelines import Pipeline
    from alpacamq_spark.pipelines.service import Service

_FILES_HELP = "files of pipelines, TOML or YAML"
_STOP_TIMEOUT_MS = 60_000
_BACKOFF_MS = 1000
# The options of a command that name its broker and how to log in.
_TARGET = {
    "http": "--http",
    "broker": "--broker",
    "context": "--context",
    "user": "--user",
    "sasl_mechanism": "--sasl-mechanism",
}
_TARGET_FILES = {
    "password_file": "--password-file",
    "ca": "--ca",
    "cert": "--cert",
    "key_file": "--key",
}


def add_verbs(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    start = add_verb(
        verbs, common, "start", "run pipelines in the background, and again when they fail", _start,
        [
            "alpacactl pipeline start archive.toml --trigger 30s",
            "alpacactl pipeline start --foreground archive.toml",
        ],
    )  # fmt: skip
    start.description = (
        "Start a supervisor for each pipeline. It runs the pipeline, and starts it again after a failure, "
        "with a pause that doubles from --backoff up to a minute. It ends when a run has ended without a "
        "failure; with a trigger like 30s that is only when it is stopped. The log is pipeline.log in the "
        "directory service of the checkpoint."
    )
    start.add_argument("files", type=Path, nargs="+", metavar="file", help=_FILES_HELP)
    _add_options(start)
    start.add_argument(
        "--foreground",
        action="store_true",
        help="supervise in this process, with the log on standard error: for systemd and containers",
    )
    start.add_argument("--in-background", action="store_true", help=argparse.SUPPRESS)

    stop = add_verb(
        verbs, common, "stop", "stop pipelines after their current batch", _stop,
        ["alpacactl pipeline stop archive.toml"],
    )  # fmt: skip
    stop.add_argument("files", type=Path, nargs="+", metavar="file", help=_FILES_HELP)
    _add_stop_options(stop)

    restart = add_verb(
        verbs, common, "restart", "stop pipelines, and start them with the same options", _restart,
        ["alpacactl pipeline restart archive.toml"],
    )  # fmt: skip
    restart.add_argument("files", type=Path, nargs="+", metavar="file", help=_FILES_HELP)
    _add_options(restart)
    _add_stop_options(restart)


def _add_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--trigger", metavar="TRIGGER", help=TRIGGER_HELP)
    verb.add_argument(
        "--backoff", type=duration, metavar="DURATION", help="pause after the first failure; default: 1s"
    )


def _add_stop_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--timeout",
        type=duration,
        default=_STOP_TIMEOUT_MS,
        metavar="DURATION",
        help="how long to wait for the current batch; default: 60s",
    )
    verb.add_argument(
        "--now", action="store_true", help="end the current batch as well; the next run repeats it"
    )


def _start(parsed: argparse.Namespace, output: Output) -> None:
    if parsed.foreground or parsed.in_background:
        _supervise(parsed)
        return
    need_spark()

    found = [_runnable(path, parsed) for path in parsed.files]
    services = [pipeline.service for pipeline in found]
    for pipeline, service in zip(found, services, strict=True):
        service.check_idle()
        pipeline.check_broker()
    options, arguments = _target_options(parsed), _arguments(parsed)
    rows = [
        start_service(service, path, options, arguments)
        for service, path in zip(services, parsed.files, strict=True)
    ]
    _show_started(rows, output)
    for pipeline, path in zip(found, parsed.files, strict=True):
        if pipeline.ends_by_itself:
            print_message(f"{path} ends when everything is processed; with --trigger 30s a stream goes on")


def start_service(
    service: "Service", path: Path, options: Sequence[str], arguments: Sequence[str]
) -> "dict[str, Plain]":
    """Start the supervisor of a pipeline in the background; return what to show."""
    from alpacamq_spark.pipelines.service import start_in_background, this_program

    file = str(path.resolve())
    command = this_program(*options, "pipeline", "start", "--in-background", *arguments, file)
    process = start_in_background(service, command)
    return {"name": service.name, "process": process, "log": str(service.log), "file": str(path)}


def _show_started(rows: "Sequence[dict[str, Plain]]", output: Output) -> None:
    output.show(list(rows), Table(["pipeline", "process", "log"], [list(row.values())[:3] for row in rows]))


def _supervise(parsed: argparse.Namespace) -> None:
    from alpacamq_spark.pipelines.service import supervise, this_program

    need_spark()
    if len(parsed.files) > 1:
        raise UsageError("--foreground supervises one pipeline: give one file")
    [path] = parsed.files
    options, arguments = _target_options(parsed), _arguments(parsed)
    trigger = () if parsed.trigger is None else ("--trigger", parsed.trigger)
    code = supervise(
        _runnable(path, parsed).service,
        this_program(*options, "pipeline", "run", *trigger, str(path.resolve())),
        options=options,
        arguments=arguments,
        backoff_s=(parsed.backoff or _BACKOFF_MS) / 1000,
        in_background=parsed.in_background,
    )
    if code:
        raise CommandError("the pipeline cannot run as it was started; see its log")


def _runnable(path: Path, parsed: argparse.Namespace) -> "Pipeline":
    pipeline = loaded(path, parsed)
    return pipeline if parsed.trigger is None else pipeline.triggered(parsed.trigger)


def _stop(parsed: argparse.Namespace, output: Output) -> None:
    rows = [stop_service(path, parsed) for path in parsed.files]
    output.show(rows, Table(["pipeline", "was running"], [list(row.values()) for row in rows]))


def stop_service(path: Path, parsed: argparse.Namespace) -> "dict[str, Plain]":
    """Stop a pipeline, started or just running; return what to show."""
    from alpacamq_spark.pipelines import load

    service = load(path).service
    was_running = service.stop(parsed.timeout / 1000, at_once=parsed.now)
    return {"name": service.name, "was_running": was_running}


def _restart(parsed: argparse.Namespace, output: Output) -> None:
    need_spark()
    found = [_runnable(path, parsed) for path in parsed.files]
    rows = []
    for pipeline, path in zip(found, parsed.files, strict=True):
        service = pipeline.service
        last = service.state()
        service.stop(parsed.timeout / 1000, at_once=parsed.now)
        options = _target_options(parsed) or ([] if last is None else list(last.options))
        arguments = _arguments(parsed) or ([] if last is None else list(last.arguments))
        rows.append(start_service(service, path, options, arguments))
    _show_started(rows, output)


def _arguments(parsed: argparse.Namespace) -> list[str]:
    """Return the options of a start, to pass them on."""
    arguments = [] if parsed.trigger is None else ["--trigger", parsed.trigger]
    return arguments if parsed.backoff is None else [*arguments, "--backoff", f"{parsed.backoff}ms"]


def _target_options(parsed: argparse.Namespace) -> list[str]:
    """Return the options that name the broker, to pass them on; files by absolute paths."""
    options = []
    for name, flag in _TARGET.items():
        if (said := getattr(parsed, name)) is not None:
            options += [flag, said]
    for name, flag in _TARGET_FILES.items():
        if (said := getattr(parsed, name)) is not None:
            options += [flag, str(Path(said).expanduser().resolve())]
    return [*options, "--tls"] if parsed.tls else options
