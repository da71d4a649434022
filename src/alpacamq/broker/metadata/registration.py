"""Keeps this broker registered at the controller: registration, heartbeats, controlled shutdown."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import msgspec

from alpacamq.cluster.brokers import NO_EPOCH, BrokerRegistration, Endpoint
from alpacamq.cluster.commands import Heartbeat, HeartbeatReply, RegisterBroker
from alpacamq.cluster.image import FEATURES
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.log.sealed_file import Missing, Unreadable, read_sealed, write_sealed
from alpacamq.model.address import Address
from alpacamq.model.errors import (
    AlpacaError,
    RequestTimedOut,
    StaleBrokerEpoch,
    StorageFailed,
    UnknownBroker,
)
from alpacamq.model.ids import BrokerId
from alpacamq.model.ports import Clock, Disk
from alpacamq.model.version import VERSION
from alpacamq.telemetry.logs import get_logger

from .metadata import Metadata

log = get_logger(__name__)

RETRY_SECONDS = 0.5
# After this long without an answer to its registration, a broker reports what it waits for, and asks again.
REGISTER_SECONDS = 5.0
# A broker that stops asks for leave this often, and goes without after this long.
SHUTDOWN_INTERVAL_SECONDS = 0.1
SHUTDOWN_SECONDS = 10.0
# A cluster without a controller for so long has lost its majority, perhaps because all of its nodes stop.
ELECTION_SECONDS = 3.0

# A clock that differs more from cluster time is reported.
MAX_CLOCK_ERROR_MS = 5_000

_MAGIC = b"ALBE"
_VERSION = 1


def is_clock_wrong(ahead_ms: int) -> bool:
    """Return whether the clock of a machine differs so much from cluster time that it is reported."""
    return abs(ahead_ms) > MAX_CLOCK_ERROR_MS


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How this broker presents itself to the cluster."""

    endpoints: Mapping[str, Address] = {}
    rack: str = ""
    roles: tuple[str, ...] = ("broker", "controller")
    heartbeat_ms: int = 3000
    # The controller's: after this long without a heartbeat it elects other leaders.
    dead_ms: int = 9000


class Registration:
    """The registration of this process, an incarnation of the broker with this id."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        node_id: BrokerId,
        directory_id: UUID,
        epoch_file: Path,
        settings: RegistrationSettings,
        disk: Disk,
        clock: Clock,
        wall_clock: Clock | None = None,
        damaged: Callable[[], tuple[PartitionId, ...]] = lambda: (),
        is_disk_failing: Callable[[], bool] = lambda: False,
        stopped_cleanly: bool = False,
    ) -> None:
        """Store the broker epoch in `epoch_file`; `damaged` lists the replicas that lack records.

        `is_disk_failing` returns whether there is no room for more of them, or the disk fails.

        `wall_clock` is compared with cluster time; None if there are no other brokers.
        `stopped_cleanly`: the process before this one stopped on request.
        """
        self._metadata = metadata
        self._node_id = node_id
        self._directory_id = directory_id
        self._incarnation_id = uuid4()
        self._epoch_file = epoch_file
        self._settings = settings
        self._disk = disk
        self._clock = clock
        self._wall_clock = wall_clock
        self._is_clock_wrong = False
        self._damaged = damaged
        self._is_disk_failing = is_disk_failing
        self._stopped_cleanly = stopped_cleanly
        # The broker epoch of this process; NO_EPOCH before it is registered.
        self.epoch = NO_EPOCH
        self.last_reply: HeartbeatReply | None = None
        # Until when the controller counts on this broker, by the monotonic clock. None: no other broker does.
        self._session_ends: float | None = None
        self._session_timer: asyncio.TimerHandle | None = None
        self._has_contact = True
        # The damage that the last answered heartbeat has reported.
        self._known_damage: frozenset[PartitionId] = frozenset()
        # Called after each answered heartbeat that has reported damage.
        self.damage_known: Callable[[], None] = lambda: None
        # Called when `has_contact` changes.
        self.contact_changed: Callable[[], None] = lambda: None
        # Whether the replicas of this broker are open; until then it stays fenced.
        self.is_ready = False
        self._was_registered = False
        self._reported = ""
        self._is_leaving = False
        self._is_unfenced = asyncio.Event()
        self._wake = asyncio.Event()

    def register_alone(self) -> None:
        """Register in a cluster of this node only. Blocking; before the event loop runs."""
        self._metadata.former_process_ended()
        self._registered(self._metadata.decide_alone(self._request()))
        self.is_ready = True
        self._heard(self._metadata.decide_alone(self._heartbeat()))

    async def register(self) -> None:
        """Register at the controller.

        Returns once the image of this node has the registration, and its clock the controller's time: state
        machines, which this broker may have to run with the next heartbeat, depend on it.
        """
        while self.epoch == NO_EPOCH or not self._metadata.time.is_synchronised:
            try:
                if self.epoch == NO_EPOCH:
                    self._metadata.former_process_ended()
                    asked = self._clock.monotonic()
                    found = await self._metadata.ask(self._request(), REGISTER_SECONDS)
                    self._extend_session(asked)
                    await asyncio.get_running_loop().run_in_executor(None, self._registered, found)
                await self._beat()
                self._reported = ""
            except (StaleBrokerEpoch, UnknownBroker) as error:
                self._report(error)
                self.epoch = NO_EPOCH
                await asyncio.sleep(RETRY_SECONDS)
            except AlpacaError as error:
                self._report(error)
                await asyncio.sleep(RETRY_SECONDS)

    def _report(self, error: AlpacaError) -> None:
        """Log why this broker is not registered; once, not for every attempt."""
        if str(error) != self._reported:
            self._reported = str(error)
            log.warning("broker_not_registered", broker=self._node_id, reason=str(error))

    async def run(self) -> None:
        """Register if that has not been done, and send heartbeats until cancelled."""
        while True:
            await self.register()
            # Before the heartbeat, which says how things are now.
            self._wake.clear()
            try:
                await self._beat()
                pause = self._settings.heartbeat_ms / 1000
                if self.last_reply is not None and self.last_reply.is_fenced:
                    pause = RETRY_SECONDS / 10  # it waits for metadata that is on its way
            except (StaleBrokerEpoch, UnknownBroker) as error:
                self._report(error)
                self.epoch = NO_EPOCH
                pause = RETRY_SECONDS
            except AlpacaError as error:
                log.warning("heartbeat_failed", reason=str(error))
                pause = RETRY_SECONDS
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _beat(self) -> None:
        """Send a heartbeat, and learn from the reply."""
        asked = self._clock.monotonic()
        # Not longer: the session goes on, and another controller may be elected meanwhile.
        interval = self._settings.heartbeat_ms / 1000
        heartbeat = self._heartbeat()
        reply = await self._metadata.ask(heartbeat, timeout_seconds=max(interval, 1.0))
        self._metadata.heard_time(reply.cluster_time_ms, int(asked * 1000))
        self._heard(reply)
        self._extend_session(asked)
        self._check_clock()
        self._known_damage = frozenset(heartbeat.damaged)
        if self._known_damage:
            self.damage_known()

    @property
    def clock_ahead_ms(self) -> int:
        """How far the clock of this machine is ahead of cluster time; 0 without other brokers."""
        if self._wall_clock is None:
            return 0
        return self._wall_clock.now_ms() - self._metadata.cluster_time_ms()

    def _check_clock(self) -> None:
        """Log when the clock of this machine begins or ceases to be wrong."""
        ahead_ms = self.clock_ahead_ms
        if is_clock_wrong(ahead_ms) is self._is_clock_wrong:
            return
        self._is_clock_wrong = not self._is_clock_wrong
        report = log.error if self._is_clock_wrong else log.info
        report(
            "clock_wrong" if self._is_clock_wrong else "clock_right", node=self._node_id, ahead_ms=ahead_ms
        )

    def ready(self) -> None:
        """Let the controller unfence this broker: its replicas are open."""
        self.is_ready = True
        self._wake.set()

    def beat_now(self) -> None:
        """Send the next heartbeat at once: what it says has changed."""
        self._wake.set()

    async def leave(self) -> None:
        """Have leaders moved to other brokers before this one stops. Returns when it may stop."""
        if self.epoch == NO_EPOCH:
            return
        self._is_leaving = True
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                while True:
                    with suppress(RequestTimedOut):
                        reply = await self._metadata.ask(self._heartbeat(), ELECTION_SECONDS)
                        if reply.may_shut_down:
                            return
                    await asyncio.sleep(SHUTDOWN_INTERVAL_SECONDS)
        except (AlpacaError, TimeoutError) as error:
            log.warning("leaders_not_moved", reason=str(error) or "no answer in time")

    def _request(self) -> RegisterBroker:
        settings = self._settings
        return RegisterBroker(
            id=self._node_id,
            incarnation_id=self._incarnation_id,
            directory_id=self._directory_id,
            last_epoch=self._stored_epoch(),
            rack=settings.rack,
            roles=settings.roles,
            endpoints=tuple(
                Endpoint(name, address.host, address.port) for name, address in settings.endpoints.items()
            ),
            features=FEATURES,
            software_version=VERSION,
            damaged=self._damaged(),
            stopped_cleanly=self._stopped_cleanly,
        )

    def _heartbeat(self) -> Heartbeat:
        damaged = self._damaged()
        # The controller is about to forget the rest.
        self._known_damage &= frozenset(damaged)
        return Heartbeat(
            broker_id=self._node_id,
            broker_epoch=self.epoch,
            applied_index=self._metadata.applied_index if self.is_ready else 0,
            wants_shutdown=self._is_leaving,
            damaged=damaged,
            is_disk_failing=self._is_disk_failing(),
            clock_ms=self._clock.now_ms(),
        )

    def _registered(self, found: BrokerRegistration) -> None:
        """Store the epoch before the first heartbeat, so that an older one means a restored backup."""
        try:
            write_sealed(self._disk, self._epoch_file, _MAGIC, _VERSION, str(found.epoch).encode())
        except OSError as error:
            raise StorageFailed(f"cannot store the broker epoch: {error.strerror or error}") from error
        self.epoch = found.epoch
        self._was_registered = True
        log.info("broker_registered", broker=self._node_id, epoch=found.epoch)

    def _heard(self, reply: HeartbeatReply) -> None:
        if self.last_reply is None or self.last_reply.is_fenced != reply.is_fenced:
            log.info("broker_fenced" if reply.is_fenced else "broker_unfenced", broker=self._node_id)
        self.last_reply = reply
        if reply.is_fenced:
            self._is_unfenced.clear()
        else:
            self._is_unfenced.set()

    def is_current(self) -> bool:
        """Return whether the image names no other process as the broker with this id."""
        broker = self._metadata.image.brokers.get(self._node_id)
        return broker is None or not self._was_registered or broker.incarnation_id == self._incarnation_id

    def is_damage_known(self, partition: PartitionId) -> bool:
        """Return whether the controller knows that a replica of this broker is damaged."""
        return partition in self._known_damage

    # The session, as seen from here.

    def has_contact(self) -> bool:
        """Return whether the controller has answered within `dead_ms`; otherwise others may lead by now."""
        return self._has_contact and not self._is_session_over()

    def _is_session_over(self) -> bool:
        return self._session_ends is not None and self._clock.monotonic() >= self._session_ends

    def _extend_session(self, asked: float) -> None:
        """Note an answer. The session lasts from the question on: that is no later than the controller's."""
        if self._metadata.is_alone:
            self._session_ends = None
        else:
            self._session_ends = asked + self._settings.dead_ms / 1000
            self._watch_session()
        if not self._has_contact and not self._is_session_over():
            log.info("controller_found", broker=self._node_id)
            self._has_contact = True
            self.contact_changed()

    def _watch_session(self) -> None:
        if self._session_timer is not None:
            self._session_timer.cancel()
        assert self._session_ends is not None
        delay = max(self._session_ends - self._clock.monotonic(), 0)
        self._session_timer = asyncio.get_running_loop().call_later(delay, self._session_may_be_over)

    def _session_may_be_over(self) -> None:
        self._session_timer = None
        if not self._is_session_over():
            if self._session_ends is not None:
                self._watch_session()
        elif self._has_contact:
            log.error("controller_lost", broker=self._node_id, silent_ms=self._settings.dead_ms)
            self._has_contact = False
            self.contact_changed()

    async def wait_until_unfenced(self) -> None:
        """Return once the broker may lead partitions."""
        await self._is_unfenced.wait()

    def _stored_epoch(self) -> int:
        try:
            return int(read_sealed(self._disk, self._epoch_file, _MAGIC, _VERSION))
        except Missing:
            return NO_EPOCH
        except (Unreadable, ValueError) as error:
            # As if the directory were an old backup: its replicas are rebuilt.
            log.error("broker_epoch_unreadable", path=str(self._epoch_file), reason=str(error))
            return NO_EPOCH
