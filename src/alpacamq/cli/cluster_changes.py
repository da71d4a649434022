"""The verbs of `alpacactl cluster` that change it: drain, remove, reassign, elect and upgrade."""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .cells import size, size_text
from .commands import (
    add_confirmation,
    add_verb,
    confirm,
    connect_http,
    count,
    duration,
    index,
    topic_name,
)
from .output import Output, Table
from .parsing import CommandError, UsageError
from .progress import ProgressLine

if TYPE_CHECKING:
    from alpacamq.client.http.connection import HttpApi
    from alpacamq.wire.cluster import ClusterPartition, PartitionOutcome, ReassignmentStatus

    from .yaml import Plain

_POLL_S = 0.5
_RATE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?) ?([kmg]?)(i?)b?(?:/s)?", re.ASCII | re.IGNORECASE)
_NO_LIMIT = -1
_BAR = 20
_MAX_PLAN_BYTES = 64 << 20
# Partitions of a reassignment: topic, partition, replicas; None cancels.
_Wanted = tuple[str, int, list[int] | None]


def add_to(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]", common: argparse.ArgumentParser
) -> None:
    drain = add_verb(
        verbs, common, "drain", "move leaders and replicas off a node, and wait until it has none", _drain,
        [
            "alpacactl cluster drain 3",
            "alpacactl cluster drain 3 --leaders-only",
            "alpacactl cluster drain 3 --cancel",
        ],
    )  # fmt: skip
    drain.add_argument("node", type=index, metavar="NODE")
    drain.add_argument("--leaders-only", action="store_true", help="keep the replicas, for maintenance")
    drain.add_argument(
        "--cancel", action="store_true", help="cancel draining; leaders return, moved replicas do not"
    )
    _add_waiting(drain)

    remove = add_verb(
        verbs, common, "remove",
        "drain a node, remove its vote, and unregister it once it has stopped", _remove,
        ["alpacactl cluster remove 3", "alpacactl cluster remove 3 --force --yes"],
    )  # fmt: skip
    remove.add_argument("node", type=index, metavar="NODE")
    remove.add_argument(
        "--force",
        action="store_true",
        help="do not drain it: for a lost node whose replicas no other node can take",
    )
    add_confirmation(remove)
    _add_waiting(remove)

    reassign = add_verb(
        verbs, common, "reassign", "move replicas to other nodes, or show and cancel such moves", _reassign,
        [
            "alpacactl cluster reassign --topic orders --to 1,2,3",
            "alpacactl cluster reassign --file plan.json --throttle 50MB",
            "alpacactl cluster reassign --throttle none",
            "alpacactl cluster reassign --status",
            "alpacactl cluster reassign --topic orders --cancel",
        ],
    )  # fmt: skip
    reassign.add_argument(
        "--file", type=Path, metavar="JSON", help="plan in the format of kafka-reassign-partitions.sh"
    )
    reassign.add_argument("--topic", type=topic_name, metavar="TOPIC", help="all partitions of a topic")
    reassign.add_argument(
        "--to", type=_nodes, metavar="NODES", help="with --topic: spread its replicas over these nodes"
    )
    reassign.add_argument(
        "--factor", type=count, metavar="N", help="with --to: replicas of each partition; default: as before"
    )
    reassign.add_argument(
        "--throttle",
        type=byte_rate,
        metavar="RATE",
        help="most bytes per second that each node sends, and fetches, such as 50MB, or none; the former "
        "limit is restored when the moves are done. Alone: change the limit",
    )
    action = reassign.add_mutually_exclusive_group()
    action.add_argument("--status", action="store_true", help="show reassignments in progress")
    action.add_argument(
        "--cancel", action="store_true", help="cancel them: those of --file or --topic, or all"
    )
    _add_waiting(reassign)

    upgrade = add_verb(
        verbs, common, "upgrade", "raise the feature level, after all nodes were upgraded", _upgrade,
        ["alpacactl cluster upgrade --dry-run", "alpacactl cluster upgrade"],
    )  # fmt: skip
    upgrade.add_argument("--dry-run", action="store_true", help="show the levels and change nothing")
    add_confirmation(upgrade)

    elect = add_verb(
        verbs, common, "elect", "move leadership to preferred replicas", _elect,
        ["alpacactl cluster elect", "alpacactl cluster elect --topic orders"],
    )  # fmt: skip
    elect.add_argument("--topic", type=topic_name, metavar="TOPIC", help="only partitions of this topic")
    elect.add_argument(
        "--unclean",
        action="store_true",
        help="instead, let any replica lead partitions without a leader, and lose the records it lacks",
    )
    add_confirmation(elect)


def _add_waiting(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--no-wait", action="store_true", help="start it and return immediately")
    verb.add_argument("--timeout", type=duration, metavar="TIME", help="fail if it takes longer")


def _nodes(text: str) -> list[int]:
    """Parse node ids separated by commas."""
    found = [index(each.strip()) for each in text.split(",") if each.strip()]
    if not found or len(set(found)) != len(found):
        raise argparse.ArgumentTypeError(f"{text!r} must be different node ids, as in 1,2,3")
    return found


def byte_rate(text: str) -> int:
    """Parse bytes a second: 1000000, 50MB, 64MiB/s; none is no limit."""
    if text.strip().lower() == "none":
        return _NO_LIMIT
    if (found := _RATE.fullmatch(text.strip())) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate such as 50MB, 64MiB or none")
    unit = 1024 if found[3] else 1000
    rate = int(float(found[1]) * unit ** " kmg".index(found[2].lower() or " "))
    if rate < 1:
        raise argparse.ArgumentTypeError("a rate must be at least 1 byte a second")
    return rate


def _drain(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.cluster import cluster_status, drain_node, find_node, stop_draining

    with connect_http(parsed) as api:
        find_node(cluster_status(api), parsed.node)
        if parsed.cancel:
            stopped = stop_draining(api, parsed.node)
            output.done(
                {"node": parsed.node, "draining": False, "replicas": stopped.replicas},
                f"node {parsed.node} takes leaders and replicas again; it has {stopped.replicas} replicas",
            )
            return
        left = drain_node(api, parsed.node, leaders_only=parsed.leaders_only)
        if not parsed.no_wait:
            _wait_until_drained(api, parsed)
            left = drain_node(api, parsed.node, leaders_only=parsed.leaders_only)
    what = "leaders" if parsed.leaders_only else "replicas"
    message = (
        f"draining node {parsed.node}: {left.leaders} leaders and {left.replicas} replicas are left"
        if parsed.no_wait
        else f"node {parsed.node} has no {what} any more, and gets none until "
        f"`alpacactl cluster drain {parsed.node} --cancel`"
    )
    output.done(
        {"node": parsed.node, "draining": True, "leaders": left.leaders, "replicas": left.replicas}, message
    )


def _wait_until_drained(api: "HttpApi", parsed: argparse.Namespace) -> None:
    from alpacamq.client.http.cluster import drain_node

    leaders_only = getattr(parsed, "leaders_only", False)

    def left() -> str:
        found = drain_node(api, parsed.node, leaders_only=leaders_only)
        if leaders_only:
            return f"{found.leaders} leaders are left" if found.leaders else ""
        if not found.replicas:
            return ""
        return f"{found.leaders} leaders and {found.replicas} replicas are left"

    _wait(left, f"draining node {parsed.node}", parsed.timeout)


def _wait(left: Callable[[], str], what: str, timeout_ms: int | None) -> None:
    """Show what is left until nothing is. Raises CommandError after the timeout."""
    line = ProgressLine()
    give_up = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    shown = ""
    try:
        while text := left():
            if text != shown:
                line.show(f"{what}: {text}")
                shown = text
            if give_up is not None and time.monotonic() > give_up:
                raise CommandError(f"{what}: {text} after {timeout_ms} ms; the brokers continue")
            time.sleep(_POLL_S)
    finally:
        line.end()


def _remove(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.cluster import cluster_status, drain_node, find_node, remove_node
    from alpacamq.client.http.connection import Problem

    with connect_http(parsed) as api:
        status = cluster_status(api)
        node = find_node(status, parsed.node)
        if status.node_id == parsed.node:
            raise UsageError(f"{api.address} is node {parsed.node} itself; use --http of another node")
        confirm(parsed, f"remove node {parsed.node} from the cluster")
        if not parsed.force:
            drain_node(api, parsed.node, leaders_only=False)
            if node.replicas and parsed.no_wait:
                raise CommandError(f"node {parsed.node} is being drained; repeat the command when it is")
            _wait_until_drained(api, parsed)
        try:
            remove_node(api, parsed.node, force=parsed.force)
        except Problem:
            if find_node(cluster_status(api), parsed.node).fenced or parsed.no_wait:
                raise

            def left() -> str:
                found = find_node(cluster_status(api), parsed.node)
                return "" if found.fenced else "it has no vote and no replicas; stop its process now"

            _wait(left, f"removing node {parsed.node}", parsed.timeout)
            remove_node(api, parsed.node, force=parsed.force)
    output.done({"removed": parsed.node}, f"removed node {parsed.node}; its data directory can be deleted")


def _reassign(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.cluster import cluster_status, reassign, set_throttle

    throttle = None if parsed.throttle == _NO_LIMIT else parsed.throttle
    if parsed.throttle is not None and (parsed.status or parsed.cancel):
        raise UsageError("--throttle is for new moves, or alone for those in progress")
    with connect_http(parsed) as api:
        if parsed.status:
            _show_reassignments(api, output)
            return
        if parsed.throttle is not None and parsed.file is None and parsed.topic is None:
            set_throttle(api, throttle)
            limit = "no limit" if throttle is None else f"a limit of {size_text(throttle)}/s on each node"
            output.done({"throttle": throttle}, f"reassignments have {limit}")
            return
        wanted = _cancelled(api, parsed) if parsed.cancel else _wanted(api, parsed)
        before = None if parsed.throttle is None else cluster_status(api).throttle
        if parsed.throttle is not None:
            set_throttle(api, throttle)
        outcomes = reassign(api, wanted) if wanted else []
        if not (parsed.cancel or parsed.no_wait or any(each.error for each in outcomes)):
            _wait_until_moved(api, outcomes, parsed.timeout)
        if parsed.throttle is not None and not cluster_status(api).reassignments:
            set_throttle(api, before)
    _show_outcomes(outcomes, output)


def _wait_until_moved(api: "HttpApi", outcomes: "Sequence[PartitionOutcome]", timeout_ms: int | None) -> None:
    from alpacamq.client.http.cluster import cluster_status

    moved = {(each.topic, each.partition) for each in outcomes}
    # The time, and the bytes left, when the most were left.
    began: list[tuple[float, int]] = []

    def left() -> str:
        status = cluster_status(api)
        moving = [each for each in status.reassignments if (each.topic, each.partition) in moved]
        if not moving:
            return ""
        if all(each.bytes_left is None for each in moving):
            return f"{len(moving)} partitions are left"  # their leaders have not heard of new replicas yet
        behind = sum(each.behind or 0 for each in moving)
        lacking = sum(each.bytes_left or 0 for each in moving)
        now = time.monotonic()
        if not began or lacking > began[0][1]:
            began[:] = [(now, lacking)]
        seconds, copied = now - began[0][0], began[0][1] - lacking
        rate = f" at {size_text(copied / seconds)}/s" if seconds > 0 and copied > 0 else ""
        return (
            f"{len(moving)} partitions are left, {behind} messages behind, {size_text(lacking)} to copy{rate}"
        )

    _wait(left, f"moving {len(moved)} partitions", timeout_ms)


def _show_reassignments(api: "HttpApi", output: Output) -> None:
    import msgspec

    from alpacamq.client.http.cluster import cluster_status

    status = cluster_status(api)
    found = status.reassignments
    output.show(msgspec.to_builtins(found), reassignment_table(found))
    if not found and status.throttle is not None:
        limit = f"{size_text(status.throttle)}/s on each node"
        print(f"there is a limit of {limit}; remove it with --throttle none", file=sys.stderr)


def reassignment_table(reassignments: "list[ReassignmentStatus]") -> Table:
    """Return reassignments in progress as a table."""
    return Table(
        ["topic", "partition", "replicas", "adding", "removing", "progress", "behind", "left", "throttle"],
        [
            [
                each.topic,
                each.partition,
                each.replicas,
                each.adding,
                each.removing,
                None if each.progress is None else bar(each.progress),
                each.behind,
                size(each.bytes_left),
                None if each.throttle is None else f"{size_text(each.throttle)}/s",
            ]
            for each in reassignments
        ],
        title="reassignments",
    )


def bar(share: float) -> str:
    """Draw a progress bar for a share from 0 to 1."""
    return f"[{('#' * int(share * _BAR)).ljust(_BAR, '.')}] {share:4.0%}"


def _show_outcomes(outcomes: "Sequence[PartitionOutcome]", output: Output) -> None:
    shown: list[dict[str, Plain]] = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "leader": each.leader,
            "replicas": list(each.replicas),
            "error": each.error,
        }
        for each in outcomes
    ]
    output.show(
        list(shown),
        Table(
            ["topic", "partition", "leader", "replicas", "error"],
            [list(each.values()) for each in shown],
            title="partitions",
        ),
    )
    if failed := [each for each in outcomes if each.error]:
        raise CommandError(f"{len(failed)} of {len(outcomes)} partitions did not change: {failed[0].error}")


def _wanted(api: "HttpApi", parsed: argparse.Namespace) -> list[_Wanted]:
    from alpacamq.client.http.cluster import cluster_partitions, cluster_status, find_node
    from alpacamq.client.http.names import naming

    if parsed.file is not None and parsed.topic is None:
        return read_plan(parsed.file)
    if parsed.topic is None or parsed.to is None or parsed.file is not None:
        raise UsageError("give --file JSON, or --topic TOPIC with --to NODES")
    with naming(api, topic=parsed.topic):
        found = cluster_partitions(api, topic=parsed.topic)
    status = cluster_status(api)
    racks = {node: find_node(status, node).rack for node in parsed.to}
    return spread(found, racks, parsed.factor)


def _cancelled(api: "HttpApi", parsed: argparse.Namespace) -> list[_Wanted]:
    from alpacamq.client.http.cluster import cluster_partitions

    if parsed.file is not None:
        return [(topic, partition, None) for topic, partition, _ in read_plan(parsed.file)]
    moving = cluster_partitions(api, topic=parsed.topic, state="reassigning")
    return [(each.topic, each.partition, None) for each in moving]


def spread(
    partitions: "Sequence[ClusterPartition]", racks: Mapping[int, str], factor: int | None
) -> list[_Wanted]:
    """Return replicas for each partition on the nodes of `racks`, as many as before.

    They are on different racks as far as there are racks, and spread evenly, as are the preferred leaders.
    A node that does not name its rack is a rack of its own.
    """
    nodes = list(racks)
    replicas_on: Counter[int] = Counter()
    led_by: Counter[int] = Counter()
    wanted: list[_Wanted] = []
    for each in partitions:
        replicas = factor or len(each.replicas) - len(each.adding)
        if replicas > len(nodes):
            raise UsageError(
                f"partition {each.partition} of {each.topic} has {replicas} replicas, but --to names "
                f"{len(nodes)} nodes; add nodes or set --factor"
            )
        chosen: list[int] = []
        used: Counter[object] = Counter()
        for _ in range(replicas):
            others = [node for node in nodes if node not in chosen]
            node = min(others, key=lambda node: (used[racks[node] or node], replicas_on[node]))
            chosen.append(node)
            used[racks[node] or node] += 1
        replicas_on.update(chosen)
        chosen.sort(key=nodes.index)
        leader = min(chosen, key=lambda node: led_by[node])
        led_by[leader] += 1
        first = chosen.index(leader)
        wanted.append((each.topic, each.partition, chosen[first:] + chosen[:first]))
    return wanted


def read_plan(path: Path) -> list[_Wanted]:
    """Read a plan in the format of Kafka's kafka-reassign-partitions."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_PLAN_BYTES + 1)
        if len(content) > _MAX_PLAN_BYTES:
            raise ValueError(f"larger than {_MAX_PLAN_BYTES} bytes")
        plan = json.loads(content)
        return [
            (str(each["topic"]), int(each["partition"]), [int(replica) for replica in each["replicas"]])
            for each in plan["partitions"]
        ]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f'{path} is not a plan: {error!r}; expected {{"partitions": [{{"topic": "orders", '
            '"partition": 0, "replicas": [1, 2, 3]}]}'
        ) from None


def _upgrade(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.cluster import upgrade_cluster

    with connect_http(parsed) as api:
        found = upgrade_cluster(api, dry_run=True)
        if found.level > found.before and not parsed.dry_run:
            confirm(parsed, f"raise the cluster to level {found.level}; older versions cannot join any more")
            found = upgrade_cluster(api, dry_run=False)
    values: dict[str, Plain] = {
        "before": found.before,
        "level": found.before if parsed.dry_run else found.level,
        "supported": found.supported,
    }
    table = Table(["BEFORE", "LEVEL", "SUPPORTED"], [[str(each) for each in values.values()]])
    output.show(values, table)


def _elect(parsed: argparse.Namespace, output: Output) -> None:
    from alpacamq.client.http.cluster import cluster_partitions, elect_leaders
    from alpacamq.client.http.names import naming

    with connect_http(parsed) as api:
        partitions = None
        if parsed.topic is not None:
            state = "offline" if parsed.unclean else "not-preferred"
            with naming(api, topic=parsed.topic):
                found = cluster_partitions(api, topic=parsed.topic, state=state)
            partitions = [(each.topic, each.partition) for each in found]
        if parsed.unclean:
            confirm(parsed, "elect replicas that may lack records; the missing records are lost")
        outcomes = []
        if partitions is None or partitions:
            outcomes = elect_leaders(api, "unclean" if parsed.unclean else "preferred", partitions)
    _show_outcomes(outcomes, output)
