"""The `alpacamq` command.

`serve` runs the broker, `health` asks whether it serves, `config` prints every option, `format` prepares a
data directory for a cluster, `verify` checks stored data, `repair` repairs it, `backup` copies it and
`restore` makes a data directory of the copy, `worker` runs an application of the Python client.
Modules of a command are imported when it runs, so that `--help` is fast.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from alpacamq.model.errors import AlpacaError
from alpacamq.model.version import described

# Of files of a backup, which contain messages and the hashes of passwords.
_PRIVATE = 0o077
SUMMARY = "Durable message broker: one log, read as a log or as a queue."
# Options of the command line and the configuration keys they set.
OVERRIDES = {
    "node_id": "node.id",
    "data_dir": "node.data_dir",
    "cluster": "cluster.listen",
    "cluster_nodes": "cluster.nodes",
    "kafka": "kafka.listen",
    "http": "http.listen",
    "sqs": "sqs.listen",
    "registry": "registry.listen",
    "grpc": "grpc.listen",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0 on success, 1 on failure, 2 on invalid usage."""
    parsed = _parser().parse_args(arguments)
    try:
        run = {
            "serve": _serve,
            "health": _health,
            "config": _config,
            "format": _format,
            "verify": _verify,
            "repair": _repair,
            "backup": _backup,
            "restore": _restore,
            "worker": _worker,
        }[parsed.command]
        return run(parsed)
    except AlpacaError as error:
        print(f"alpacamq: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="alpacamq", description=SUMMARY)
    parser.add_argument("--version", action="version", version=f"alpacamq {described()}")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the broker")
    serve.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file (TOML); see `alpacamq config`"
    )
    serve.add_argument("--node-id", metavar="N", help="id of this node, unique in its cluster")
    serve.add_argument("--data-dir", metavar="DIR", help="data directory; overrides file and environment")
    serve.add_argument(
        "--kafka", metavar="HOST:PORT", help="address for Kafka clients; port 0 selects a free port"
    )
    serve.add_argument("--http", metavar="HOST:PORT", help="address of the JSON API for HTTP clients")
    serve.add_argument("--sqs", metavar="HOST:PORT", help="address of the SQS API for AWS SDKs")
    serve.add_argument("--registry", metavar="HOST:PORT", help="address of the schema registry")
    serve.add_argument("--grpc", metavar="HOST:PORT", help="address of the gRPC API")
    serve.add_argument("--cluster", metavar="HOST:PORT", help="address for other nodes")
    serve.add_argument(
        "--cluster-nodes",
        metavar="ID@HOST:PORT,…",
        help="initial nodes of the cluster, the same list on each; without it, this node is its own cluster",
    )
    serve.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="start a cluster of N broker processes on this machine, for more cores or to try one",
    )
    # One of these processes: its standard input ends with the process that has started it.
    serve.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    health = commands.add_parser("health", help="check whether the broker with this configuration is ready")
    health.add_argument("--config", type=Path, metavar="FILE", help="its configuration file")
    health.add_argument("--http", metavar="HOST:PORT", help="address of its HTTP API")
    health.add_argument(
        "--live", action="store_true", help="only whether it responds, not whether it is ready"
    )
    commands.add_parser("config", help="print a configuration file with every option and its default")
    verify = commands.add_parser(
        "verify", help="check every stored batch of a stopped broker against its checksum"
    )
    verify.add_argument("--data-dir", type=Path, metavar="DIR", default=Path("data"), help="default: data")
    format_ = commands.add_parser(
        "format",
        help="assign a data directory to a cluster by hand, or clear one whose cluster was never created",
    )
    format_.add_argument("--data-dir", type=Path, metavar="DIR", default=Path("data"), help="default: data")
    format_.add_argument("--node-id", type=int, metavar="N", default=1, help="node.id, default 1")
    action = format_.add_mutually_exclusive_group(required=True)
    action.add_argument("--cluster-id", metavar="ID", help="join this cluster, whichever node answers first")
    action.add_argument(
        "--reset", action="store_true", help="clear a directory whose cluster was proposed but never created"
    )
    action.add_argument(
        "--sole-voter",
        action="store_true",
        help="after a majority of the voters is lost for good: make this node the only one; may lose records",
    )
    repair = commands.add_parser(
        "repair", help="show and repair damage in the data directory of a stopped broker"
    )
    repair.add_argument(
        "action",
        nargs="?",
        choices=("check", "rebuild", "restore", "skip", "cut"),
        default="check",
        help="check: only show damage (default); rebuild: rebuild derived data; "
        "restore: take damaged data from a backup; skip: give up the damaged records; "
        "cut: give up the damaged records and all after them",
    )
    repair.add_argument(
        "path", nargs="?", metavar="TARGET", help="a file, or a partition such as orders-0; default: all"
    )
    repair.add_argument("--data-dir", type=Path, metavar="DIR", default=Path("data"), help="default: data")
    repair.add_argument(
        "--from",
        dest="backup",
        type=Path,
        metavar="BACKUP",
        help="restore: a file, or a copy of DIR",
    )
    repair.add_argument(
        "--execute", action="store_true", help="apply the changes; without it, only print them"
    )
    repair.add_argument("--cluster-id", metavar="ID", help="rebuild identity: the cluster id it had")
    repair.add_argument("--node-id", type=int, metavar="N", help="rebuild identity: node.id, default 1")
    repair.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    backup = commands.add_parser("backup", help="copy the data of a broker, which may be running")
    backup.add_argument("--data-dir", type=Path, metavar="DIR", default=Path("data"), help="default: data")
    backup.add_argument("--to", type=Path, metavar="BACKUP", required=True, help="directory to create")
    backup.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    restore = commands.add_parser("restore", help="create a data directory from a backup")
    restore.add_argument("--from", dest="backup", type=Path, metavar="BACKUP", required=True, help="a backup")
    restore.add_argument("--data-dir", type=Path, metavar="DIR", required=True, help="directory to create")
    restore.add_argument(
        "--new-cluster",
        action="store_true",
        help="create a new cluster with this node as the only voter; needed if the old one had others",
    )
    restore.add_argument("-o", "--output", choices=("text", "json"), default="text", help="default: text")
    worker = commands.add_parser("worker", help="run an application that processes messages of queues")
    worker.add_argument("app", metavar="MODULE:APP", help="an alpacamq.Worker, such as tasks:app")
    worker.add_argument("--processes", type=int, metavar="N", default=1, help="default: 1")
    worker.add_argument("--reload", action="store_true", help="start again when a source file changes")
    worker.add_argument(
        "--metrics",
        metavar="HOST:PORT",
        help="serve metrics for Prometheus; further processes use the ports after PORT",
    )
    return parser


def _serve(parsed: argparse.Namespace) -> int:
    started_at = time.monotonic()
    # Imports create many objects and hardly any garbage: collections would take a quarter of the start.
    gc.disable()

    import uvloop

    from alpacamq.telemetry import logs

    from .config import load
    from .serve import serve
    from .supervisor import Supervisor

    gc.freeze()
    gc.enable()
    given = {option: getattr(parsed, name) for name, option in OVERRIDES.items()}
    config = load(parsed.config, os.environ, {key: text for key, text in given.items() if text is not None})
    logs.configure(config.logging.level, config.logging.format, sys.stderr)
    if parsed.processes is not None:
        import asyncio

        from .processes import serve_processes

        options = [] if parsed.config is None else ["--config", str(parsed.config)]
        return asyncio.run(
            serve_processes(config, parsed.processes, options, started_at, Supervisor.of(os.environ))
        )
    uvloop.run(serve(config, started_at, Supervisor.of(os.environ), is_child=parsed.child))
    return 0


def _config(_parsed: argparse.Namespace) -> int:
    from .config import example

    print(example(), end="")
    return 0


def _format(parsed: argparse.Namespace) -> int:
    from alpacamq.log.data_directory import format_directory, reset_directory
    from alpacamq.log.disk import SystemDisk

    if parsed.sole_voter:
        from alpacamq.broker.clock import SystemClock
        from alpacamq.broker.metadata.opening import make_sole_voter
        from alpacamq.model.ids import BrokerId

        node_id = BrokerId(parsed.node_id)
        former = make_sole_voter(parsed.data_dir, SystemDisk(), SystemClock(), node_id)
        print(
            f"node {node_id} is the only voter now, instead of {', '.join(str(each.id) for each in former)}; "
            "never start the others with their former data directories again"
        )
    elif parsed.reset:
        identity = reset_directory(parsed.data_dir, SystemDisk(), parsed.node_id)
        print(f"{parsed.data_dir} belongs to no cluster; its directory id is {identity.directory_id}")
    else:
        format_directory(parsed.data_dir, SystemDisk(), parsed.node_id, parsed.cluster_id)
        print(f"{parsed.data_dir} belongs to cluster {parsed.cluster_id}; start the node with cluster.nodes")
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from .repair import verify

    return verify(parsed.data_dir)


def _repair(parsed: argparse.Namespace) -> int:
    from .repair import Action, RepairRequest, repair

    request = RepairRequest(
        data_directory=parsed.data_dir,
        action=Action(parsed.action),
        path=parsed.path,
        backup=parsed.backup,
        execute=parsed.execute,
        cluster_id=parsed.cluster_id,
        node_id=parsed.node_id,
    )
    return repair(request, parsed.output)


def _health(parsed: argparse.Namespace) -> int:
    from .config import load
    from .health import check_health

    overrides = {} if parsed.http is None else {"http.listen": parsed.http}
    return check_health(load(parsed.config, os.environ, overrides), is_liveness_enough=parsed.live)


def _backup(parsed: argparse.Namespace) -> int:
    from .backup import back_up

    os.umask(_PRIVATE)
    return back_up(parsed.data_dir, parsed.to, parsed.output)


def _restore(parsed: argparse.Namespace) -> int:
    from .backup import restore

    os.umask(_PRIVATE)
    return restore(parsed.backup, parsed.data_dir, parsed.output, founds_cluster=parsed.new_cluster)


def _worker(parsed: argparse.Namespace) -> int:
    from alpacamq.client.worker.command import run

    return run(parsed.app, processes=parsed.processes, is_reloading=parsed.reload, metrics=parsed.metrics)


if __name__ == "__main__":
    sys.exit(main())
