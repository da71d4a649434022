"""The answers of one connection: each has its place from when its request begins, and goes out in turn."""

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.telemetry.metrics import RequestFigures

from .outbox import Outbox, Piece, release, size_of

if TYPE_CHECKING:
    from .connection import Connection


class Answer:
    """A request's place in the order of answers; `fill` may come at any time."""

    __slots__ = ("_connection", "began_at", "figures", "pieces", "size")

    def __init__(self, connection: "Connection", figures: RequestFigures | None, began_at: float) -> None:
        self._connection = connection
        # Where its duration is counted, if it is, and since when it runs.
        self.figures = figures
        self.began_at = began_at
        self.pieces: Sequence[Piece] | None = None
        self.size = 0

    def fill(self, pieces: Sequence[Piece]) -> None:
        """The answer is known."""
        if self._connection.is_closed:
            release(pieces)
            return
        self.pieces = pieces
        self.size = sum(map(size_of, pieces))
        self._connection.answered(self.size)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody is still there to get it."""
        return not self._connection.is_closed

    def begin_now(self) -> None:
        """Count its duration from now on: the client asked to wait for what came before."""
        if self.figures is not None:
            self.began_at = monotonic()

    def refused(self, code: int) -> None:
        """Count an error that it tells of."""
        if self.figures is not None:
            self.figures.refused(ErrorCode(code).name)


def send_known(answers: deque[Answer], outbox: Outbox) -> int:
    """Send the answers that are known and have none before them that is not; their size."""
    sent_bytes = alike = 0
    figures: RequestFigures | None = None
    began_at = 0.0
    # Requests that came together and are of one kind are counted together; of others there are few.
    earlier: list[tuple[RequestFigures, float, int]] | None = None
    while answers and (pieces := answers[0].pieces) is not None:
        answer = answers.popleft()
        sent_bytes += answer.size
        outbox.put(pieces)
        if answer.figures is figures and answer.began_at == began_at:
            alike += 1
            continue
        if figures is not None:
            if earlier is None:
                earlier = []
            earlier.append((figures, began_at, alike))
        figures, began_at, alike = answer.figures, answer.began_at, 1
    outbox.flush()
    if figures is not None:
        now = monotonic()
        figures.seconds.observe(now - began_at, alike)
        if earlier is not None:
            for figures, began_at, alike in earlier:
                figures.seconds.observe(now - began_at, alike)
    return sent_bytes
