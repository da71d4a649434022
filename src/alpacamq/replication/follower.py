"""The follower of one partition: fetches from the leader, one request at a time, and follows its log.

Decides what to fetch, where to truncate and when to retry. The host performs: it sends the fetch, appends,
flushes or truncates, and reports back. `next_step` says what is to be done now; it can be asked again at any
time. A response counts only if it answers the outstanding request.

The fetch offset tells the leader what this replica can never lose, so it is the *flushed* end. A fetch
therefore waits until everything appended is flushed, and no record is fetched twice.
"""

from enum import Enum

import msgspec

from alpacamq.model.ids import BrokerId

from .leader import UNKNOWN_EPOCH, EpochEnds

# Between a failed fetch and the next one: doubled with every failure in a row.
FIRST_BACKOFF_MS = 50
MAX_BACKOFF_MS = 1000


class FetchPosition(msgspec.Struct, frozen=True):
    """Fetch from `offset` of the leader, with the leader epoch of the request and that before `offset`."""

    request_id: int
    leader_id: BrokerId
    leader_epoch: int
    offset: int
    last_epoch: int


class FlushTo(msgspec.Struct, frozen=True):
    """Flush the log up to `offset`, then call `flushed`."""

    offset: int


class TruncateTo(msgspec.Struct, frozen=True):
    """Remove everything from `offset` on, durably, then call `truncated`.

    `lost_committed`: records below the high watermark are removed. Only an unclean election explains it.
    """

    offset: int
    lost_committed: bool


class RestartAt(msgspec.Struct, frozen=True):
    """Remove the whole log and start it again, empty, at `offset`, durably; then call `truncated`."""

    offset: int
    lost_committed: bool


Step = FetchPosition | FlushTo | TruncateTo | RestartAt


class FetchError(Enum):
    """Why a fetch brought nothing."""

    FENCED_LEADER_EPOCH = "fenced leader epoch"  # newer metadata is on its way to this broker
    UNKNOWN_LEADER_EPOCH = "unknown leader epoch"  # newer metadata is on its way to the leader
    NOT_LEADER = "not leader"
    STALE_BROKER_EPOCH = "stale broker epoch"
    UNREACHABLE = "unreachable"  # connection lost, or no answer in time
    INVALID = "invalid response"  # does not continue this log


class PartitionFollower:
    """The replication state of one partition that this broker follows, whichever broker leads it.

    The host calls it between its own operations on the log: an append, a truncation or a flush that has begun
    is reported before the next leader is.
    """

    __slots__ = (
        "_backoff_ms",
        "_cut",
        "_epochs",
        "_flush_counts",
        "_leader_watermark",
        "_outstanding",
        "_request_id",
        "_retry_ms",
        "flushed_end",
        "high_watermark",
        "last_error",
        "leader_epoch",
        "leader_id",
        "leader_start",
        "log_end",
        "lost_committed",
    )

    def __init__(self, epochs: EpochEnds, *, flush_counts: bool = True) -> None:
        self._epochs = epochs
        self._flush_counts = flush_counts
        self.log_end = self.flushed_end = 0
        # The last watermark known to cover only what is here; the checkpointed one at the start.
        self.high_watermark = 0
        self._leader_watermark = 0
        self.leader_id: BrokerId | None = None
        self.leader_epoch = UNKNOWN_EPOCH
        # Where the leader's log starts, -1 before it was heard. The host removes what is before it.
        self.leader_start = -1
        # Whether a truncation was ordered that removes records below the high watermark.
        self.lost_committed = False
        self.last_error: FetchError | None = None
        self._request_id = 0
        self._outstanding: int | None = None
        self._cut: TruncateTo | RestartAt | None = None
        self._retry_ms: int | None = None
        self._backoff_ms = FIRST_BACKOFF_MS

    # Rules. Each is one predicate.

    def answers(self, request_id: int) -> bool:
        """Return whether a response is to the outstanding fetch, not late, doubled or of a former leader."""
        return request_id == self._outstanding

    def is_newer_leader(self, leader_epoch: int) -> bool:
        """Return whether a leader is newer than the one followed: metadata never goes back."""
        return leader_epoch > self.leader_epoch

    def may_fetch(self) -> bool:
        """Return whether the end of the log may be reported: the leader takes the fetch offset as flushed."""
        return self.flushed_end == self.log_end or not self._flush_counts

    def removes_committed(self, offset: int) -> bool:
        """Return whether a truncation to `offset` removes records that are known to be committed."""
        return offset < self.high_watermark

    def continues_log(self, end_offset: int, last_epoch: int) -> bool:
        """Return whether fetched records end behind this log and were written by no later leader."""
        return end_offset > self.log_end and self._epochs.latest <= last_epoch <= self.leader_epoch

    # Leadership.

    def follow(
        self,
        leader_id: BrokerId | None,
        leader_epoch: int,
        *,
        log_end: int,
        flushed_end: int,
        high_watermark: int,
    ) -> None:
        """Follow the leader of a newer epoch; None if the partition has no leader now.

        The log and the watermark are given as they are now: this broker may have led the partition meanwhile.
        What a former leader answered no longer counts.
        """
        assert self.is_newer_leader(leader_epoch), f"epoch {leader_epoch} follows {self.leader_epoch}"
        assert flushed_end <= log_end, f"flushed {flushed_end} of {log_end}"
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.flushed_end = flushed_end
        self.high_watermark = self._leader_watermark = min(high_watermark, log_end)
        self._outstanding = None
        self._cut = None
        self._retry_ms = None
        self._backoff_ms = FIRST_BACKOFF_MS
        self.last_error = None

    def next_step(self, now_ms: int) -> Step | None:
        """Return what the host is to do now; None: wait for a response, for metadata or for the deadline.

        A step other than a fetch is returned again until its result is reported.
        """
        if self._cut is not None:
            return self._cut
        if self.leader_id is None or self._outstanding is not None:
            return None
        if not self.may_fetch():
            return FlushTo(self.log_end)
        if self._retry_ms is not None and now_ms < self._retry_ms:
            return None
        self._retry_ms = None
        self._request_id += 1
        self._outstanding = self._request_id
        return FetchPosition(
            self._request_id, self.leader_id, self.leader_epoch, self.log_end, self._epochs.latest
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """When to ask for the next step after a failure."""
        return self._retry_ms

    def rebuild(self, start_offset: int) -> None:
        """Empty the log, because it lacks records, and fetch it again. What was asked for no longer counts.

        The replica must not count as in sync, nor be able to become so before it has fetched everything.
        """
        self._outstanding = None
        self._cut = RestartAt(start_offset, lost_committed=False)

    # Responses to the outstanding fetch.

    def received(
        self,
        request_id: int,
        *,
        end_offset: int,
        last_epoch: int,
        high_watermark: int,
        start_offset: int,
        now_ms: int,
    ) -> bool:
        """Note a response with records before `end_offset`; without any, `end_offset` is the fetch offset.

        True if the host is to append them and to call `appended`, or `failed` if it cannot.
        """
        if not self.answers(request_id):
            return False
        has_records = end_offset != self.log_end
        if has_records and not self.continues_log(end_offset, last_epoch):
            self.failed(request_id, FetchError.INVALID, now_ms)
            return False
        self._backoff_ms = FIRST_BACKOFF_MS
        self.last_error = None
        self.leader_start = start_offset
        self._leader_watermark = high_watermark
        if not has_records:
            self._outstanding = None
            self._advance()
        return has_records

    def diverged(self, request_id: int, epoch: int, end_offset: int, now_ms: int) -> None:
        """Note that the logs differ before the fetch offset: at the leader, `epoch` ends at `end_offset`."""
        if not self.answers(request_id):
            return
        target = self._common_end(epoch, end_offset)
        if target == self.log_end and epoch >= self._epochs.latest:
            # The leader contradicts itself: truncating nothing would be repeated for ever.
            self.failed(request_id, FetchError.INVALID, now_ms)
            return
        self._outstanding = None
        # A target at the end drops an epoch of this log without records.
        self._cut = TruncateTo(target, self._note_loss(target))

    def out_of_range(self, request_id: int, start_offset: int, end_offset: int, now_ms: int) -> None:
        """Note that the leader's log, from start to end, does not reach the fetch offset."""
        if not self.answers(request_id):
            return
        if start_offset <= self.log_end <= end_offset:
            # The leader's log has grown since, or its start has moved: the next fetch will tell.
            self.failed(request_id, FetchError.INVALID, now_ms)
            return
        self._outstanding = None
        # Behind the leader's start, all that is here was removed there by retention: nothing is lost.
        self._cut = RestartAt(start_offset, self._note_loss(end_offset))

    def failed(self, request_id: int, error: FetchError, now_ms: int) -> None:
        """Note that a fetch brought nothing: retry later. Newer metadata ends the wait by `follow`."""
        if not self.answers(request_id):
            return
        self._outstanding = None
        self.last_error = error
        self._retry_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, MAX_BACKOFF_MS)

    # Reports of the host.

    def appended(self, request_id: int, log_end: int) -> None:
        """Note that the records of a response were appended; the log and its epochs have grown."""
        assert self.answers(request_id), f"response {request_id} was not to be appended"
        self._outstanding = None
        self.log_end = log_end
        self._advance()

    def flushed(self, flushed_end: int) -> None:
        """Note that the log, as it is now, is on disk up to an offset."""
        assert flushed_end <= self.log_end, f"flushed {flushed_end} of {self.log_end}"
        self.flushed_end = flushed_end
        self._advance()

    def truncated(self, log_end: int) -> None:
        """Note that the log was truncated or restarted, durably with all that is left of it."""
        self._cut = None
        self.log_end = self.flushed_end = log_end
        self.high_watermark = self._leader_watermark = min(self.high_watermark, log_end)

    def _advance(self) -> None:
        """Follow the leader's watermark as far as this log is durable."""
        own_end = self.flushed_end if self._flush_counts else self.log_end
        self.high_watermark = max(self.high_watermark, min(self._leader_watermark, own_end))

    def _common_end(self, epoch: int, end_offset: int) -> int:
        """Return an offset behind which the logs cannot agree; the next fetch may find them to differ again.

        If this log lacks the leader's epoch, nothing after its next older epoch can be the leader's.
        """
        _, own_end = self._epochs.end_offset_for(epoch, self.log_end)
        ends = (end_offset, self.log_end) if own_end == -1 else (own_end, end_offset, self.log_end)
        return min(ends)

    def _note_loss(self, offset: int) -> bool:
        is_loss = self.removes_committed(offset)
        self.lost_committed = self.lost_committed or is_loss
        return is_loss
