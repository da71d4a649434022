"""The session of a broker with the controller, as the broker sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from alpacamq.broker.clock import SystemClock
from alpacamq.broker.metadata.metadata import Metadata
from alpacamq.broker.metadata.registration import Registration, RegistrationSettings
from alpacamq.cluster.brokers import BrokerRegistration
from alpacamq.cluster.commands import Command, HeartbeatReply, RegisterBroker
from alpacamq.cluster.image import ClusterImage
from alpacamq.log.disk import SystemDisk
from alpacamq.model.errors import NotController
from alpacamq.model.ids import BrokerId

DEAD_MS = 200
SOON_SECONDS = 20


class Controller:
    """The metadata of a node whose controller answers or does not."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.applied_index = 7
        self.is_alone = False
        self.answers = True

    @property
    def time(self) -> "Controller":
        return self

    is_synchronised = True

    def heard_time(self, time_ms: int, asked_ms: int) -> None:
        pass

    def former_process_ended(self) -> None:
        pass

    async def ask(self, command: Command[Any], timeout_seconds: float = 30) -> Any:
        await asyncio.sleep(0)
        if not self.answers:
            raise NotController("no controller is elected", None)
        if isinstance(command, RegisterBroker):
            return BrokerRegistration(
                id=command.id,
                incarnation_id=command.incarnation_id,
                directory_id=command.directory_id,
                epoch=1,
            )
        return HeartbeatReply(is_fenced=False, may_shut_down=False, is_caught_up=True, cluster_time_ms=0)


@asynccontextmanager
async def registered(tmp_path: Path, controller: Controller) -> AsyncIterator[Registration]:
    registration = Registration(
        cast("Metadata", controller),
        node_id=BrokerId(1),
        directory_id=UUID(int=1),
        epoch_file=tmp_path / "epoch",
        settings=RegistrationSettings(heartbeat_ms=20, dead_ms=DEAD_MS),
        disk=SystemDisk(),
        clock=SystemClock(),
    )
    task = asyncio.create_task(registration.run())
    try:
        async with asyncio.timeout(SOON_SECONDS):
            await registration.wait_until_unfenced()
        yield registration
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


async def test_contact_is_lost_when_the_controller_is_silent_and_found_when_it_answers(
    tmp_path: Path,
) -> None:
    controller = Controller()
    changes: list[bool] = []
    async with registered(tmp_path, controller) as registration:
        registration.contact_changed = lambda: changes.append(registration.has_contact())
        assert registration.has_contact()
        controller.answers = False
        await until(lambda: changes == [False])
        assert not registration.has_contact()
        controller.answers = True
        await until(lambda: changes == [False, True])


async def test_contact_is_never_lost_by_the_only_node(tmp_path: Path) -> None:
    """A full disk may keep it from answering its own heartbeats, and no other node can lead."""
    controller = Controller()
    controller.is_alone = True
    async with registered(tmp_path, controller) as registration:
        controller.answers = False
        loop = asyncio.get_running_loop()
        after = loop.time() + 2 * DEAD_MS / 1000
        await until(lambda: loop.time() > after)
        assert registration.has_contact()
