"""Named checks of the broker's health.

The detail of a failing check names the place. The checks in READY decide readiness for traffic; the others
report trouble that concerns an operator but not a load balancer.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import msgspec

from alpacamq.model.errors import DiskFull

from .broker import Broker
from .metadata.registration import is_clock_wrong

# With less room than this a disk counts as full: a segment's next batch and its index would not fit.
MIN_FREE_BYTES = 1 << 20
# How long the event loop counts as unhealthy after a stall.
STALL_REMEMBERED_SECONDS = 60.0
_SHOWN = 20
DEGRADED = "degraded"
FAILING = "failing"


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one check. `status` is ok, degraded or failing; `detail` explains it.

    Degraded: the broker does its part, and something else needs attention.
    """

    status: str
    detail: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status != FAILING

    @property
    def is_degraded(self) -> bool:
        return self.status == DEGRADED


def passing(detail: str = "") -> Check:
    return Check(status="ok", detail=detail)


def failing(detail: str) -> Check:
    return Check(status=FAILING, detail=detail)


def degraded(detail: str) -> Check:
    return Check(status=DEGRADED, detail=detail)


def reads(broker: Broker) -> Check:
    """Check that the data directory can be read."""
    path = broker.settings.data_directory.absolute()
    try:
        os.statvfs(path)
    except OSError as error:
        return failing(f"{path} cannot be read: {error.strerror}")
    return _listed(
        each.log.unreadable
        for each in broker.topics.all_partitions()
        if each.is_leading and each.log.unreadable is not None
    )


def disk(broker: Broker) -> Check:
    """Check that the data directory has free space, can be written to, and has failed no partition."""
    if not (found := _space(broker)).is_ok:
        return found
    failure = broker.disk_watch.failure
    if failure is not None and not isinstance(failure, DiskFull):  # there is room by now
        return failing(str(failure))
    return _listed(
        each.log.in_doubt for each in broker.topics.all_partitions() if each.log.in_doubt is not None
    )


def _space(broker: Broker) -> Check:
    path = broker.settings.data_directory.absolute()
    try:
        room = os.statvfs(path)
    except OSError as error:
        return failing(f"{path} cannot be read: {error.strerror}")
    if room.f_flag & os.ST_RDONLY:
        return failing(f"{path} is on a read-only file system")
    # Root may use the reserved blocks.
    free_bytes = (room.f_bfree if os.geteuid() == 0 else room.f_bavail) * room.f_frsize
    if free_bytes < MIN_FREE_BYTES:
        return failing(f"{path} is full: {free_bytes} bytes are free")
    return passing()


def writes(broker: Broker) -> Check:
    """Check that the last write to each partition was accepted, or would be accepted now."""
    refused = [each for each in broker.topics.all_partitions() if each.refusal is not None]
    if any(isinstance(each.refusal, DiskFull) for each in refused) and _space(broker).is_ok:
        # A quota may be full where the disk is not: a write has to succeed as well.
        room_s = broker.disk_watch.room_s
        refused = [
            each for each in refused if not isinstance(each.refusal, DiskFull) or each.refused_s >= room_s
        ]
    return _listed(f"{each.identity} refused its last write: {each.refusal}" for each in refused)


def partitions(broker: Broker) -> Check:
    """Check that all stored data can be served and is known to be on disk."""
    return _listed(
        f"{each.identity}: {trouble}"
        for each in broker.topics.all_partitions()
        for trouble in (
            each.log.in_doubt,
            each.log.unreadable,
            *each.log.damages,
            *each.log.recovered.losses,
        )
        if trouble is not None
    )


def transactions(broker: Broker) -> Check:
    """Check that every open transaction has a coordinator that will end it."""
    return _listed(
        f"a transaction hangs: {each}; see alpacactl transactions find-hanging"
        for each in broker.transactions.hanging.found
    )


def coordinators(broker: Broker) -> Check:
    """Check that the state of groups, transactions, queues, delayed messages and schemas was loaded."""
    return _listed(
        iter(
            broker.groups.failures()
            + broker.transactions.failures()
            + broker.queues.failures()
            + broker.delays.failures()
            + broker.registry.failures()
        )
    )


def event_loop(broker: Broker) -> Check:
    """Check that the event loop has not stalled recently."""
    watch = broker.event_loop
    ago = watch.seconds_since_stall()
    if ago is None or ago > STALL_REMEMBERED_SECONDS:
        return passing()
    return failing(f"it stalled for {watch.last_stall_seconds:.1f} s, {ago:.0f} s ago; see the log")


def clock(broker: Broker) -> Check:
    """Check that the clock of this machine shows the time of the cluster."""
    ahead_ms = broker.clock_ahead_ms
    if not is_clock_wrong(ahead_ms):
        return passing()
    seconds, side = abs(ahead_ms) / 1000, "ahead of" if ahead_ms > 0 else "behind"
    return failing(f"the clock of node {broker.settings.node_id} is {seconds:.1f} s {side} cluster time")


def cluster(broker: Broker) -> Check:
    """Check that the controller counts on this broker. Otherwise it leads no partition."""
    if broker.member is None:
        return passing()
    registration = broker.registration
    if not registration.has_contact():
        return failing(f"no answer from the controller ({_controller(broker)}); other nodes may lead by now")
    if registration.last_reply is None or registration.last_reply.is_fenced:
        return failing(f"fenced by the controller ({_controller(broker)})")
    if broker.metadata.controller_id is None:
        return degraded(
            "no controller is elected; leaders continue for cluster.dead_ms, topics cannot be changed"
        )
    return passing()


def replicas(broker: Broker) -> Check:
    """Check that partitions have leaders, and those led here all their replicas in sync.

    A replica that is not in sync is the trouble of its own broker: this one is degraded, not failing.
    """
    led = list(broker.replication.led_partitions)
    counts = {
        "without a leader": len(broker.metadata.image.leaderless),
        "led here below min.insync.replicas": sum(each.is_below_min_isr for each in led),
        "led here with replicas that are not in sync": sum(each.is_under_replicated for each in led),
    }
    found = [f"{count} partitions are {text}" for text, count in counts.items() if count]
    return degraded("; ".join(found) + "; see alpacactl cluster partitions") if found else passing()


def _controller(broker: Broker) -> str:
    found = broker.metadata.controller_id
    return "none is known" if found is None else f"node {found}"


def recovery(_broker: Broker) -> Check:
    """Pass: until the broker has recovered, the recovery app answers in its place."""
    return passing()


Checks = Mapping[str, Callable[[Broker], Check]]
READY: Checks = {"recovery": recovery, "cluster": cluster, "disk": disk}
ALL: Checks = {
    **READY,
    "writes": writes,
    "partitions": partitions,
    "replicas": replicas,
    "transactions": transactions,
    "coordinators": coordinators,
    "event_loop": event_loop,
    "clock": clock,
}


def all_checks(broker: Broker) -> dict[str, Check]:
    """Run every check and return the results by name."""
    return {name: check(broker) for name, check in ALL.items()}


def _listed(troubles: Iterator[str]) -> Check:
    found = list(islice(troubles, _SHOWN))
    return failing("; ".join(found)) if found else passing()
