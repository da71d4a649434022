"""StartMessageMoveTask, CancelMessageMoveTask and ListMessageMoveTasks: redrives of dead letters."""

from base64 import b64decode, b64encode

import msgspec

from alpacamq.broker.queue.service import Queues, RedriveTask

from .directory import Queue, QueueDirectory
from .errors import INVALID_PARAMETER, RESOURCE_NOT_FOUND, Fault, invalid_value
from .requests import CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask
from .results import (
    Caller,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    MoveTask,
    StartMessageMoveTaskResult,
)

MAX_PER_SECOND = 500
MAX_LISTED = 10


class Handle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The contents of a task handle."""

    task_id: str
    source_arn: str


class MoveTasks:
    """Starts, cancels and lists redrives."""

    def __init__(self, queues: Queues, directory: QueueDirectory) -> None:
        self._queues = queues
        self._directory = directory

    async def start(self, request: StartMessageMoveTask, _caller: Caller) -> StartMessageMoveTaskResult:
        source = self._queue(request.source_arn, "SourceArn")
        if not await self._queues.dead_letter_sources(source.name):
            raise Fault(INVALID_PARAMETER, "Source queue must be configured as a Dead Letter Queue.")
        target = None
        if request.destination_arn is not None:
            target = self._queue(request.destination_arn, "DestinationArn").name
        rate = request.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= MAX_PER_SECOND:
            raise invalid_value(
                rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {MAX_PER_SECOND}, if provided."
            )
        if any(task.state in ("running", "cancelling") for task in self._queues.redrives(source.name)):
            raise Fault(
                INVALID_PARAMETER,
                "There is already a task running. Only one active task is allowed for a source queue "
                "arn at a given time.",
            )
        task = await self._queues.start_redrive(source.name, target=target, messages_per_second=rate)
        return StartMessageMoveTaskResult(task_handle=self._handle(task))

    async def cancel(self, request: CancelMessageMoveTask, _caller: Caller) -> CancelMessageMoveTaskResult:
        try:
            handle = msgspec.json.decode(b64decode(request.task_handle, validate=True), type=Handle)
        except (ValueError, msgspec.DecodeError):
            raise Fault(INVALID_PARAMETER, "Value for parameter TaskHandle is invalid.") from None
        source = self._queue(handle.source_arn, "SourceArn")
        for task in self._queues.redrives(source.name):
            if task.id == handle.task_id:
                if task.state != "running":
                    raise Fault(RESOURCE_NOT_FOUND, "Only active tasks can be cancelled.")
                return CancelMessageMoveTaskResult(moved=self._queues.cancel_redrive(task.id).moved)
        raise Fault(RESOURCE_NOT_FOUND, "Task does not exist.")

    async def list(self, request: ListMessageMoveTasks, _caller: Caller) -> ListMessageMoveTasksResult:
        source = self._queue(request.source_arn, "SourceArn")
        count = 1 if request.max_results is None else request.max_results
        if not 1 <= count <= MAX_LISTED:
            raise invalid_value(count, "MaxResults", f"Must be between 1 and {MAX_LISTED}, if provided.")
        tasks = self._queues.redrives(source.name)[:count]
        return ListMessageMoveTasksResult(results=[self._shown(task) for task in tasks])

    def _queue(self, arn: str, parameter: str) -> Queue:
        queue = self._directory.find(self._directory.name_in(arn, parameter))
        if queue is None:
            raise Fault(
                RESOURCE_NOT_FOUND,
                f"The resource that you specified for the {parameter} parameter doesn't exist.",
            )
        return queue

    def _handle(self, task: RedriveTask) -> str:
        handle = Handle(task_id=task.id, source_arn=self._directory.arn(task.source))
        return b64encode(msgspec.json.encode(handle)).decode()

    def _shown(self, task: RedriveTask) -> MoveTask:
        return MoveTask(
            task_handle=self._handle(task) if task.state == "running" else None,
            status=task.state.upper(),
            source_arn=self._directory.arn(task.source),
            destination_arn=None if task.target is None else self._directory.arn(task.target),
            max_number_of_messages_per_second=task.messages_per_second,
            moved=task.moved,
            to_move=task.to_move,
            failure_reason=task.failure or None,
            started_timestamp=task.started_ms,
        )
