"""ReceiveMessage."""

import re

from alpacamq.broker.queues import Queues
from alpacamq.telemetry.tracing import Door

from .actions import Caller
from .attributes import MAX_VISIBILITY_S, MAX_WAIT_S
from .directory import Queue, QueueDirectory
from .errors import INVALID_PARAMETER, Fault, invalid_value
from .received import Presentation
from .requests import ReceiveMessage
from .results import ReceiveMessageResult

MAX_MESSAGES = 10

_ATTEMPT_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Receiving:
    """Leases messages to whoever asks, for as long as the queue or the request says."""

    def __init__(self, queues: Queues, directory: QueueDirectory) -> None:
        self._queues = queues
        self._directory = directory

    async def receive(self, asked: ReceiveMessage, _caller: Caller) -> ReceiveMessageResult:
        queue = self._directory.by_url(asked.queue_url)
        presentation = Presentation(queue, self._directory, asked)
        _check(queue, asked)
        visibility_s, wait_s = asked.visibility_timeout, asked.wait_time_seconds
        if wait_s is None:
            wait_s = int(queue.attributes.get("ReceiveMessageWaitTimeSeconds", "0"))
        deliveries = await self._queues.receive(
            queue.id,
            max_messages=1 if asked.max_number_of_messages is None else asked.max_number_of_messages,
            visibility_ms=None if visibility_s is None else visibility_s * 1000,
            wait_ms=wait_s * 1000,
            # Several of one group come in order, and its others wait until all of them are done with.
            key_runs=queue.is_fifo,
            door=Door.SQS,
        )
        return ReceiveMessageResult(messages=[presentation.message(delivery) for delivery in deliveries])


def _check(queue: Queue, asked: ReceiveMessage) -> None:
    wait_s, visibility_s = asked.wait_time_seconds, asked.visibility_timeout
    count = asked.max_number_of_messages
    if count is not None and not 1 <= count <= MAX_MESSAGES:
        raise invalid_value(
            count, "MaxNumberOfMessages", f"Must be between 1 and {MAX_MESSAGES}, if provided."
        )
    if wait_s is not None and not 0 <= wait_s <= MAX_WAIT_S:
        raise invalid_value(wait_s, "WaitTimeSeconds", f"Must be >= 0 and <= {MAX_WAIT_S}, if provided.")
    if visibility_s is not None:
        check_visibility(visibility_s)
    attempt_id = asked.receive_request_attempt_id
    if attempt_id is not None and (not queue.is_fifo or not _ATTEMPT_ID.fullmatch(attempt_id)):
        raise Fault(INVALID_PARAMETER, "ReceiveRequestAttemptId is for FIFO queues, of 1 to 128 characters.")


def check_visibility(visibility_s: int) -> None:
    """Refuse a visibility timeout that SQS does not know."""
    if not 0 <= visibility_s <= MAX_VISIBILITY_S:
        raise invalid_value(
            visibility_s, "VisibilityTimeout", f"Must be >= 0 and <= {MAX_VISIBILITY_S}, if provided."
        )
