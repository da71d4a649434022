"""What the checks of a broker's health see, and what they cost others."""

import threading
from pathlib import Path

import pytest

from alpacamq.broker import health
from alpacamq.broker.partition import housekeeping
from alpacamq.broker.publishing import Message, Published
from alpacamq.model.errors import StorageFailed
from tests.waiting import soon

from .open_brokers import BreakableDisk, running


async def test_whether_a_full_disk_has_room_again_is_tried_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETRY_SECONDS", 0.02)
    disk = BreakableDisk()
    threads: list[int] = []
    has_room = False

    def can_write() -> bool:
        threads.append(threading.get_ident())
        return has_room

    async with running(tmp_path, disk=disk) as broker:
        monkeypatch.setattr(broker, "can_write", can_write)
        await broker.topics.create("t", partitions=1)
        disk.full = True
        (refused,) = await broker.publisher.publish("t", [Message(value=b"v")])
        assert not isinstance(refused, Published)
        # At once, before another write has been tried.
        assert "refused its last write" in health.writes(broker).detail

        async def tried() -> bool:
            assert not health.writes(broker).is_ok
            return len(threads) >= 3

        await soon(tried)
        has_room, disk.full = True, False

        async def accepts() -> bool:
            return health.writes(broker).is_ok

        await soon(accepts)
        assert threading.get_ident() not in threads
        # A write that is refused later counts again.
        has_room, disk.full = False, True
        await broker.publisher.publish("t", [Message(value=b"v")])
        assert not health.writes(broker).is_ok


async def test_an_unreadable_partition_that_is_deleted_is_no_failure_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "RETRY_SECONDS", 0.02)

    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    disk = BreakableDisk()
    async with running(tmp_path, disk=disk) as broker:
        await broker.topics.create("t", partitions=1)
        await broker.publisher.publish("t", [Message(value=b"v")])
        part = broker.topics.partition("t", 0).read(0, 1 << 20, 1, at_least_one=True)
        assert part is not None
        with monkeypatch.context() as patch:
            patch.setattr(disk, "read", failing)
            with pytest.raises(StorageFailed):
                part.read()
            part.release()

            async def fails() -> bool:
                return broker.disk_watch.failure is not None

            await soon(fails)
            await broker.topics.delete("t")

            async def works() -> bool:
                return broker.disk_watch.failure is None

            await soon(works)
