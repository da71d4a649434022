"""CreateQueue, GetQueueUrl, ListQueues, DeleteQueue, PurgeQueue and the tags of queues."""

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from alpacamq.broker.broker import Broker
from alpacamq.broker.delay.service import Waiting
from alpacamq.broker.queue.fifo import FIFO_SUFFIX
from alpacamq.broker.quotas import Limit
from alpacamq.model.errors import TopicExists, UnknownDelayed
from alpacamq.model.names import local_topic
from alpacamq.security.acls import Operation

from . import attributes as known
from .attributes import NEW_FIFO_TOPIC, NEW_QUEUE, NEW_TOPIC, StoredAttributes
from .directory import Queue, QueueDirectory
from .errors import (
    INVALID_PARAMETER,
    PURGE_IN_PROGRESS,
    QUEUE_NAME_EXISTS,
    Fault,
    has_forbidden,
    invalid_value,
    missing,
    without_forbidden,
)
from .queue_attributes import AttributeChange, QueueAttributes, described, with_attributes
from .requests import (
    CreateQueue,
    DeleteQueue,
    GetQueueUrl,
    ListDeadLetterSourceQueues,
    ListQueues,
    ListQueueTags,
    PurgeQueue,
    TagQueue,
    UntagQueue,
)
from .results import (
    NOTHING,
    Answer,
    Caller,
    ListDeadLetterSourceQueuesResult,
    ListQueuesResult,
    ListQueueTagsResult,
    QueueUrlResult,
)

if TYPE_CHECKING:
    from alpacamq.model.ids import TopicId

from base64 import b64decode, b64encode

from alpacamq.broker.queue.service import FailureCause, RedriveTask

from .errors import INVALID_CONTENTS, QUEUE_DOES_NOT_EXIST, RESOURCE_NOT_FOUND
from .requests import CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask
from .results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    MoveTask,
    StartMessageMoveTaskResult,
)

MAX_NAME_LENGTH = 80
MAX_LISTED = 1000
PURGE_INTERVAL_S = 60
CANCELLED_AT_ONCE = 1000

_NAME = re.compile(r"[a-zA-Z0-9_-]+")


class Administration:
    """Creates, finds, purges and deletes queues."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._broker = broker
        self._directory = directory
        # When queues were last purged, by the monotonic clock; those of the last minute only.
        self._purged: dict[TopicId, float] = {}

    async def create(self, request: CreateQueue, caller: Caller) -> QueueUrlResult:
        attributes = known.normalized(request.attributes or {})
        tags, name = request.tags or {}, request.queue_name
        is_fifo = attributes.get("FifoQueue") == "true"
        _check_name(name, is_fifo=is_fifo)
        known.check(attributes, is_fifo=is_fifo)
        check_tags(tags)
        if self._directory.find(name) is None:
            overrides = self._new_topic(name, attributes, tags, is_fifo=is_fifo)
            if (mutations := self._mutations(caller)) is not None:
                mutations.check()
            with suppress(TopicExists):  # created by a concurrent request
                topic = await self._broker.topics.create(
                    self._directory.stored_name(name), overrides=overrides, may_collide=True
                )
                if mutations is not None:
                    mutations.charge(topic.partitions)
        await self._check_same(self._directory.by_name(name), attributes)
        return QueueUrlResult(queue_url=self._directory.url(caller.base_url, name))

    async def get_url(self, request: GetQueueUrl, caller: Caller) -> QueueUrlResult:
        queue = self._directory.by_name(request.queue_name)
        return QueueUrlResult(queue_url=self._directory.url(caller.base_url, queue.name))

    async def list(self, request: ListQueues, caller: Caller) -> ListQueuesResult:
        prefix = request.queue_name_prefix or ""
        queues = [
            queue
            for queue in self._directory.all()
            if local_topic(queue.name).startswith(prefix) and self._sees(caller, queue)
        ]
        names, token = _page(queues, request.next_token, request.max_results)
        urls = [self._directory.url(caller.base_url, name) for name in names]
        return ListQueuesResult(queue_urls=urls, next_token=token)

    async def list_sources(
        self, request: ListDeadLetterSourceQueues, caller: Caller
    ) -> ListDeadLetterSourceQueuesResult:
        target = self._directory.by_url(request.queue_url).name
        queues = []
        for queue in self._directory.all():
            redrive = await self._directory.redrive_target(queue)
            if redrive is not None and redrive.topic == target and self._sees(caller, queue):
                queues.append(queue)
        names, token = _page(queues, request.next_token, request.max_results)
        urls = [self._directory.url(caller.base_url, name) for name in names]
        return ListDeadLetterSourceQueuesResult(queue_urls=urls, next_token=token)

    def _sees(self, caller: Caller, queue: Queue) -> bool:
        return self._broker.access.sees_topic(caller.identity, Operation.DESCRIBE, queue.name)

    def _mutations(self, caller: Caller) -> Limit | None:
        """Return the client's quota of created and deleted partitions, if it has one."""
        limits = self._broker.quotas.of_user(caller.identity)
        return None if limits is None else limits.mutation

    async def delete(self, request: DeleteQueue, caller: Caller) -> Answer:
        name = self._directory.by_url(request.queue_url).name
        if (mutations := self._mutations(caller)) is not None:
            mutations.check()
        topic = await self._broker.topics.delete(name)
        if mutations is not None:
            mutations.charge(topic.partitions)
        return NOTHING

    async def purge(self, request: PurgeQueue, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        now = self._broker.clock.monotonic()
        self._purged = {key: then for key, then in self._purged.items() if now - then < PURGE_INTERVAL_S}
        if queue.topic.id in self._purged:
            raise Fault(
                PURGE_IN_PROGRESS,
                f"Only one PurgeQueue operation on {local_topic(queue.name)} is allowed every "
                f"{PURGE_INTERVAL_S} seconds.",
            )
        self._purged[queue.topic.id] = now
        try:
            # Before the purge, which forgets the deduplication ids of messages that no longer wait.
            await self._cancel_delayed(queue.name, self._broker.time.now_ms())
            await self._broker.purge_queue(queue.id)
        except BaseException:
            self._purged.pop(queue.topic.id, None)
            raise
        return NOTHING

    async def _cancel_delayed(self, name: str, until_ms: int) -> None:
        """Cancel delayed messages that were sent to the queue until then."""
        after_id = -1
        while page := await self._broker.delays.waiting(name, after_id=after_id, limit=CANCELLED_AT_ONCE):
            after_id = page[-1].id
            doomed = [waiting for waiting in page if waiting.scheduled_ms <= until_ms]
            await asyncio.gather(*(self._cancel(name, waiting) for waiting in doomed))

    async def _cancel(self, name: str, waiting: Waiting) -> None:
        with suppress(UnknownDelayed):  # delivered meanwhile
            await self._broker.delays.cancel(name, waiting.partition, waiting.id)

    def _new_topic(
        self, name: str, attributes: Mapping[str, str], tags: Mapping[str, str], *, is_fifo: bool
    ) -> Mapping[str, str]:
        now_s = self._broker.clock.now_ms() // 1000
        return with_attributes(
            NEW_FIFO_TOPIC if is_fifo else NEW_TOPIC,
            StoredAttributes(created=now_s, modified=now_s, tags=dict(tags)),
            {**NEW_QUEUE, **attributes},
            name=name,
            is_fifo=is_fifo,
            directory=self._directory,
        )

    async def _check_same(self, queue: Queue, attributes: Mapping[str, str]) -> None:
        current = await described(queue, self._directory)
        for name, text in attributes.items():
            if not _means_the_same(text, current.get(name, known.HIDDEN_DEFAULTS.get(name, ""))):
                raise Fault(
                    QUEUE_NAME_EXISTS,
                    f"A queue already exists with the same name and a different value for attribute {name}",
                )


def _check_name(name: str, *, is_fifo: bool) -> None:
    stem = name.removesuffix(FIFO_SUFFIX) if is_fifo else name
    fits = len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(stem) is not None
    if is_fifo and not (fits and name.endswith(FIFO_SUFFIX)):
        raise Fault(
            INVALID_PARAMETER,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length.",
        )
    if not fits:
        raise Fault(
            INVALID_PARAMETER,
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length.",
        )


def _means_the_same(text: str, other: str) -> bool:
    if text == other:
        return True
    if not (text.startswith("{") and other.startswith("{")):
        return False
    return _plain(msgspec.json.decode(text)) == _plain(msgspec.json.decode(other))


def _plain(value: object) -> object:
    """Return a JSON value with numbers as text: some tools write maxReceiveCount in quotes."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return str(value) if isinstance(value, int) else value


def _page(
    queues: Sequence[Queue], next_token: str | None, max_results: int | None
) -> tuple[list[str], str | None]:
    """Return the names after a token, and the next token if the request sets a limit."""
    if max_results is not None and not 1 <= max_results <= MAX_LISTED:
        raise invalid_value(
            max_results, "MaxResults", f"MaxResults must be an integer between 1 and {MAX_LISTED}."
        )
    after = ""
    if next_token:
        try:
            after = urlsafe_b64decode(next_token).decode()
        except ValueError:
            raise Fault(INVALID_PARAMETER, "Invalid or expired next token.") from None
    names = [name for queue in queues if (name := local_topic(queue.name)) > after]
    page = names[: max_results or MAX_LISTED]
    more = max_results is not None and len(names) > len(page)
    return page, urlsafe_b64encode(page[-1].encode()).decode() if more else None


MAX_TAGS = 50
MAX_KEY_LENGTH = 128
MAX_VALUE_LENGTH = 256


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse invalid tags."""
    if len(tags) > MAX_TAGS:
        raise Fault(INVALID_PARAMETER, f"Too many tags: a queue has at most {MAX_TAGS}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise Fault(
                INVALID_PARAMETER, f"Tag keys must be between 1 and {MAX_KEY_LENGTH} characters in length."
            )
        if has_forbidden(key + value):
            raise Fault(INVALID_PARAMETER, f"The tag {without_forbidden(key)!r} has invalid characters.")
        if len(value) > MAX_VALUE_LENGTH:
            raise Fault(
                INVALID_PARAMETER,
                f"Tag values must be between 0 and {MAX_VALUE_LENGTH} characters in length.",
            )


class Tags:
    """Reads and changes the tags of queues."""

    def __init__(self, directory: QueueDirectory, attributes: QueueAttributes) -> None:
        self._directory = directory
        self._attributes = attributes

    async def tag(self, request: TagQueue, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        if not request.tags:
            raise missing("Tags")

        def tagged(stored: StoredAttributes) -> AttributeChange:
            tags = stored.tags | request.tags
            check_tags(tags)
            return AttributeChange({}, tags)

        await self._attributes.change(queue, tagged)
        return NOTHING

    async def untag(self, request: UntagQueue, _caller: Caller) -> Answer:
        queue = self._directory.by_url(request.queue_url)
        if not request.tag_keys:
            raise missing("TagKeys")
        gone = frozenset(request.tag_keys)

        def untagged(stored: StoredAttributes) -> AttributeChange:
            return AttributeChange({}, {key: value for key, value in stored.tags.items() if key not in gone})

        await self._attributes.change(queue, untagged)
        return NOTHING

    async def list(self, request: ListQueueTags, _caller: Caller) -> ListQueueTagsResult:
        return ListQueueTagsResult(tags=self._directory.by_url(request.queue_url).stored.tags)


# The codes that AWS has for failed move tasks; a reason follows.
FAILURE_CODES = {
    FailureCause.TARGET_MISSING: QUEUE_DOES_NOT_EXIST.code,
    FailureCause.NOT_ALLOWED: INVALID_CONTENTS.code,
    FailureCause.ORIGIN_UNKNOWN: "CouldNotDetermineMessageSource",
}
MAX_PER_SECOND = 500
MAX_LISTED_TASKS = 10


class Handle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The contents of a task handle."""

    task_id: str
    source_arn: str


class MoveTasks:
    """Starts, cancels and lists redrives."""

    def __init__(self, broker: Broker, directory: QueueDirectory) -> None:
        self._access = broker.access
        self._queues = broker.queues
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
        tasks = await self._queues.redrives(source.name)
        if any(task.state in ("running", "cancelling") for task in tasks):
            raise Fault(
                INVALID_PARAMETER,
                "There is already a task running. Only one active task is allowed for a source queue "
                "arn at a given time.",
            )
        task = await self._queues.start_redrive(source.name, target=target, messages_per_second=rate)
        return StartMessageMoveTaskResult(task_handle=self._handle(task))

    async def cancel(self, request: CancelMessageMoveTask, caller: Caller) -> CancelMessageMoveTaskResult:
        try:
            handle = msgspec.json.decode(b64decode(request.task_handle, validate=True), type=Handle)
        except (ValueError, msgspec.DecodeError):
            raise Fault(INVALID_PARAMETER, "Value for parameter TaskHandle is invalid.") from None
        name = self._directory.stored_name(self._directory.name_in(handle.source_arn, "SourceArn"))
        self._access.check_topic(caller.identity, Operation.READ, name)
        source = self._queue(handle.source_arn, "SourceArn")
        for task in await self._queues.redrives(source.name):
            if task.id == handle.task_id:
                if task.state != "running":
                    raise Fault(RESOURCE_NOT_FOUND, "Only active tasks can be cancelled.")
                return CancelMessageMoveTaskResult(moved=(await self._queues.cancel_redrive(task.id)).moved)
        raise Fault(RESOURCE_NOT_FOUND, "Task does not exist.")

    async def list(self, request: ListMessageMoveTasks, _caller: Caller) -> ListMessageMoveTasksResult:
        source = self._queue(request.source_arn, "SourceArn")
        count = 1 if request.max_results is None else request.max_results
        if not 1 <= count <= MAX_LISTED_TASKS:
            raise invalid_value(
                count, "MaxResults", f"Must be between 1 and {MAX_LISTED_TASKS}, if provided."
            )
        tasks = await self._queues.redrives(source.name)
        return ListMessageMoveTasksResult(results=[self._shown(task) for task in tasks[:count]])

    def _queue(self, arn: str, parameter: str) -> Queue:
        queue = self._directory.find(self._directory.name_in(arn, parameter))
        if queue is None:
            raise Fault(
                RESOURCE_NOT_FOUND,
                f"The resource that you specified for the {parameter} parameter doesn't exist: "
                f"{arn[:200]!r}.",
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
            failure_reason=_failure_reason(task),
            started_timestamp=task.started_ms,
        )


def _failure_reason(task: RedriveTask) -> str | None:
    if task.state != "failed":
        return None
    code = FAILURE_CODES.get(task.cause) if task.cause is not None else None
    return task.failure if code is None else f"{code}: {task.failure}"
