"""The service `alpacamq.v1.Log`: reading a topic by position. `subscribing.py` has the members of groups."""

from collections.abc import Sequence
from functools import partial

from alpacamq.api.rest.partition_reading import PartitionView, view_partitions
from alpacamq.broker.tracing.partition import Origin
from alpacamq.model.topics import INT64_MAX
from alpacamq.security.acls import Operation
from alpacamq.security.quotas import QuotaKey
from alpacamq.telemetry.tracing import ClientApi
from alpacamq.v1 import log_pb2 as pb
from alpacamq.v1.log_grpc import LogBase

from .call import Backend, Call
from .cursors import (
    WAIT_MS,
    Chunk,
    PartitionCursor,
    add_skipped,
    checked_bytes,
    is_batches,
    is_committed,
    resolve,
    until_stopped,
)
from .errors import InvalidField
from .subscribing import open_subscription


class LogService(LogBase):
    """Reads topics."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def Read(self, call: Call[pb.ReadRequest, pb.ReadResponse]) -> None:  # noqa: N802
        request = await call.only_message()
        if not request.topic:
            raise InvalidField("topic", "is missing")
        topic = call.stored_topic(request.topic)
        check = partial(call.check_topic, Operation.READ, topic)
        check()
        call.check_quota(QuotaKey.FETCH)
        await call.learn_topic(topic)
        reading = until_stopped(self._backend, call.timed(self._read(call, request, topic)))
        await call.while_allowed(reading, check)

    async def Subscribe(self, call: Call[pb.SubscribeRequest, pb.SubscribeResponse]) -> None:  # noqa: N802
        subscription = await open_subscription(call)
        serving = until_stopped(self._backend, subscription.run())
        await call.while_allowed(serving, subscription.check)

    async def _read(
        self, call: Call[pb.ReadRequest, pb.ReadResponse], request: pb.ReadRequest, topic: str
    ) -> None:
        max_bytes = checked_bytes("max_bytes", request.max_bytes)
        committed = is_committed("isolation", request.isolation)
        cursors = await self._cursors(call, request, topic, committed=committed)
        while cursors := [each for each in cursors if not each.is_over]:
            is_idle = True
            for cursor in cursors:
                async for chunk in cursor.read(max_bytes):
                    is_idle = False
                    await self._send(call, cursor, chunk, committed=committed)
            if is_idle:
                positions = {each.place: each.next_offset for each in cursors}
                await self._backend.broker.reads.wait(positions, WAIT_MS, committed=committed)

    async def _send(
        self,
        call: Call[pb.ReadRequest, pb.ReadResponse],
        cursor: PartitionCursor,
        chunk: Chunk,
        *,
        committed: bool,
    ) -> None:
        response = pb.ReadResponse()
        response.positions.add(
            partition=cursor.place.partition,
            next_offset=chunk.next_offset,
            end_offset=chunk.bounds.readable_end(committed=committed),
        )
        add_skipped(response, cursor.identity, chunk.skipped)
        await call.send_bytes(chunk.fields + response.SerializeToString())
        await call.pay(QuotaKey.FETCH, len(chunk.fields), chunk.records)

    async def _cursors(
        self,
        call: Call[pb.ReadRequest, pb.ReadResponse],
        request: pb.ReadRequest,
        topic: str,
        *,
        committed: bool,
    ) -> list[PartitionCursor]:
        broker = self._backend.broker
        given = {each.partition: each for each in request.partitions}
        if len(given) < len(request.partitions):
            raise InvalidField("partitions", "has a partition twice")
        views = await view_partitions(broker, topic, given or None)
        positions = [
            (view, given[view.identity.partition].position)
            if view.identity.partition in given and given[view.identity.partition].HasField("position")
            else (view, request.start)
            for view in views
        ]
        starts = await resolve(broker, positions, committed=committed)
        ends = await self._ends(request, views, committed=committed)
        return [
            PartitionCursor(
                broker,
                view,
                start,
                before_offset=end,
                committed=committed,
                as_batches=is_batches("format", request.format),
                reader=Origin(ClientApi.GRPC, call.peer),
            )
            for view, start, end in zip(views, starts, ends, strict=True)
        ]

    async def _ends(
        self, request: pb.ReadRequest, views: Sequence[PartitionView], *, committed: bool
    ) -> list[int]:
        """Return where the read ends in each partition."""
        until = request.until
        match until.WhichOneof("at"):
            case "offset":
                return [until.offset] * len(views)
            case "timestamp_ms":
                position = pb.Position(timestamp_ms=until.timestamp_ms)
                pairs = [(view, position) for view in views]
                return await resolve(self._backend.broker, pairs, committed=committed)
            case "current_end" if until.current_end:
                return [view.bounds.readable_end(committed=committed) for view in views]
        return [INT64_MAX] * len(views)
