"""TagQueue, UntagQueue and ListQueueTags: tags are kept with the queue and mean nothing here."""

from collections.abc import Mapping

from .actions import Caller
from .attributes import Kept
from .characters import has_forbidden, without_forbidden
from .directory import QueueDirectory
from .errors import INVALID_PARAMETER, Fault, missing
from .queue_attributes import QueueAttributes, Wanted
from .requests import ListQueueTags, TagQueue, UntagQueue
from .results import NOTHING, Answer, ListQueueTagsResult

MAX_TAGS = 50
MAX_KEY_LENGTH = 128
MAX_VALUE_LENGTH = 256


def check_tags(tags: Mapping[str, str]) -> None:
    """Refuse tags that a queue cannot have."""
    if len(tags) > MAX_TAGS:
        raise Fault(INVALID_PARAMETER, f"Too many tags: a queue has at most {MAX_TAGS}.")
    for key, value in tags.items():
        if not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise Fault(
                INVALID_PARAMETER, f"Tag keys must be between 1 and {MAX_KEY_LENGTH} characters in length."
            )
        if has_forbidden(key + value):
            raise Fault(
                INVALID_PARAMETER, f"The tag {without_forbidden(key)!r} has characters that tags cannot."
            )
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

    async def tag(self, asked: TagQueue, _caller: Caller) -> Answer:
        queue = self._directory.by_url(asked.queue_url)
        if not asked.tags:
            raise missing("Tags")

        def tagged(kept: Kept) -> Wanted:
            tags = kept.tags | asked.tags
            check_tags(tags)
            return Wanted({}, tags)

        await self._attributes.change(queue, tagged)
        return NOTHING

    async def untag(self, asked: UntagQueue, _caller: Caller) -> Answer:
        queue = self._directory.by_url(asked.queue_url)
        if not asked.tag_keys:
            raise missing("TagKeys")
        gone = frozenset(asked.tag_keys)

        def untagged(kept: Kept) -> Wanted:
            return Wanted({}, {key: value for key, value in kept.tags.items() if key not in gone})

        await self._attributes.change(queue, untagged)
        return NOTHING

    async def list(self, asked: ListQueueTags, _caller: Caller) -> ListQueueTagsResult:
        return ListQueueTagsResult(tags=self._directory.by_url(asked.queue_url).kept.tags)
