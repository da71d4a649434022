"""The history of leader epochs answers OffsetForLeaderEpoch."""

from pathlib import Path

import pytest

from alpacamq.log.disk import SystemDisk
from alpacamq.log.epochs import EpochEnd, EpochHistory, EpochStart, read_epochs

from .logs import a_batch, a_storage, append, flush, open_log, read_batches


@pytest.fixture
def history() -> EpochHistory:
    """Epoch 2 wrote offsets 0 to 9, epoch 5 wrote 10 to 19, epoch 6 writes from 20 on."""
    return EpochHistory([EpochStart(2, 0), EpochStart(5, 10), EpochStart(6, 20)])


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        pytest.param(6, (6, 33), id="the latest ends where the log does"),
        pytest.param(5, (5, 20), id="an earlier one ended where the next began"),
        pytest.param(4, (2, 10), id="one that wrote nothing is answered with the one before"),
        pytest.param(2, (2, 10), id="the first"),
        pytest.param(1, (1, 0), id="one from before the log began"),
        pytest.param(7, (-1, -1), id="an unknown epoch"),
    ],
)
def test_the_end_offset_of_an_epoch(history: EpochHistory, epoch: int, expected: tuple[int, int]) -> None:
    assert history.end_offset_for(epoch, 33) == EpochEnd(*expected)


def test_an_empty_history_knows_no_epoch() -> None:
    assert EpochHistory().latest == -1
    assert EpochHistory().end_offset_for(0, 0) == (-1, -1)
    assert EpochHistory().epoch_at(5)[0] == -1


@pytest.mark.parametrize(("offset", "span"), [(0, (2, 10)), (9, (2, 10)), (10, (5, 20)), (20, (6, 1 << 63))])
def test_the_epoch_of_an_offset(history: EpochHistory, offset: int, span: tuple[int, int]) -> None:
    assert history.epoch_at(offset) == span


def test_an_epoch_that_wrote_nothing_is_forgotten_for_the_next(history: EpochHistory) -> None:
    history.assign(8, 20)
    assert history.entries == ((2, 0), (5, 10), (8, 20))
    assert history.latest == 8


def test_an_epoch_never_goes_back(history: EpochHistory) -> None:
    with pytest.raises(AssertionError):
        history.assign(6, 40)


@pytest.mark.parametrize(("offset", "entries"), [(21, 3), (20, 2), (15, 2), (10, 1), (1, 1), (0, 0)])
def test_epochs_from_the_truncation_point_on_are_dropped(
    history: EpochHistory, offset: int, entries: int
) -> None:
    before = history.entries
    history.truncate_from(offset)
    assert history.entries == before[:entries]
    assert history.latest == (before[entries - 1].epoch if entries else -1)


@pytest.mark.parametrize(("offset", "gone"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (99, 2)])
def test_epochs_before_the_log_start_are_dropped(history: EpochHistory, offset: int, gone: int) -> None:
    before = history.entries
    history.truncate_before(offset)
    assert history.entries == before[gone:]


def test_the_history_is_read_back(history: EpochHistory, tmp_path: Path) -> None:
    disk = SystemDisk()
    history.write(disk, tmp_path)
    assert read_epochs(disk, tmp_path).entries == history.entries


def test_an_epoch_that_begins_during_the_first_checkpoint_is_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", a_storage(checkpoint_bytes=1))
    append(log, a_batch(), epoch=0)
    first = log.begin_flush()
    assert first is not None
    append(log, a_batch(), epoch=1)
    first.run()
    log.end_flush(first, None)
    flush(log)
    assert log.flushed_offset == 2
    again = open_log(log.directory)
    assert len(read_batches(again)) == 2
    assert again.epochs.entries == ((0, 0), (1, 1))
