"""Requests to state machines, whichever broker hosts them.

A request goes to the broker that leads the machine's partition, as the image says. If that broker does not
lead it any more, cannot be reached or is loading the machine, the request follows the leader for a limited
time. It is sent again only if the attempt before has certainly not taken effect, or if the request says that
it may be repeated.

A request that waits, such as a receive from a queue, waits at the machine: its remaining time is sent along,
and cancelling it here cancels it there.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import perf_counter
from types import NoneType
from typing import Any, Final, Protocol, TypeVar

import msgspec

from alpacamq.broker.peers.connection import Late
from alpacamq.broker.peers.handshake import Peer
from alpacamq.broker.peers.values import (
    RemoteError,
    decode_error,
    decode_hook,
    encode_error,
    encode_hook,
    reply_decoder,
    reply_type,
)
from alpacamq.cluster.image import ClusterImage, Delta
from alpacamq.cluster.partition_state import PartitionId
from alpacamq.model.errors import (
    AlpacaError,
    CoordinatorLoading,
    CoordinatorUnavailable,
    InconsistentClusterId,
    InvalidRequest,
    NotCoordinator,
    PeerFailed,
    PeerUnavailable,
    RequestTimedOut,
    UnknownBroker,
)
from alpacamq.model.ids import BrokerId, TopicName
from alpacamq.model.ports import Buffer
from alpacamq.model.state_machine import Request
from alpacamq.telemetry.metrics import ForwardStats

R = TypeVar("R")

# How long a request follows its machine: longer than a silent leader takes to be replaced, shorter than
# clients wait. Time in which the request waits on purpose is not counted.
FOLLOW_SECONDS: Final = 15.0
# How long a request to all machines waits for those that have no leader.
FOLLOW_ALL_SECONDS: Final = 5.0
FIRST_BACKOFF_SECONDS: Final = 0.05
MAX_BACKOFF_SECONDS: Final = 0.5
# How often a request goes on to another broker without a pause: brokers that are behind name each other.
MAX_MOVES_AT_ONCE: Final = 3
# A broker that does not lead a machine any more answers the requests to it at once, unless it is dead.
FORMER_LEADER_SECONDS: Final = 1.0


class ShardCall(Request[msgspec.Raw], frozen=True, kw_only=True, tag="shard-call"):
    """Ask one state machine. The request is a value of the type that the topic has registered as `kind`."""

    topic: str
    shard: int
    kind: str
    request: msgspec.Raw


class ShardAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The reply of one of several machines, or an error; neither if the machine cannot be loaded."""

    reply: bytes | None = None
    error: RemoteError | None = None


class ShardsCall(Request[tuple[ShardAnswer, ...]], frozen=True, kw_only=True, tag="shards-call"):
    """Ask several state machines of one broker the same. There is one answer for each, in order."""

    topic: str
    shards: tuple[int, ...]
    kind: str
    request: msgspec.Raw


VALUES: Final[tuple[type[msgspec.Struct], ...]] = (ShardCall, ShardsCall)


async def not_loaded(_value: object, _peer: Peer) -> None:
    """Answer a call that comes before the broker has its state machines."""
    raise CoordinatorLoading("the broker is starting")


class RequestCodec:
    """The request types of the machines of one topic, as msgpack, with their replies.

    Events, which have no reply, belong to the machine's own broker and are left out.
    """

    def __init__(self, kinds: Iterable[type[Request[Any]]]) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds if reply_type(kind) is not NoneType}
        self._encode = msgspec.msgpack.Encoder(enc_hook=encode_hook).encode
        # Built when first used: most are never sent to another broker.
        self._request_decoders: dict[str, msgspec.msgpack.Decoder[Any]] = {}
        self._reply_decoders: dict[str, Any] = {}

    @property
    def kinds(self) -> Iterable[type[Request[Any]]]:
        return self._kinds.values()

    def encode(self, request: Request[Any]) -> tuple[str, msgspec.Raw]:
        """Return the name of the request's type, and its bytes. Raises InvalidRequest."""
        name = type(request).__name__
        if self._kinds.get(name) is not type(request):
            raise TypeError(f"{name} is not registered as a request to other brokers")
        try:
            return name, msgspec.Raw(self._encode(request))
        except UnicodeError as error:
            raise InvalidRequest(f"a text of the request is not valid Unicode: {error}") from error

    def decode(self, name: str, body: Buffer) -> Request[Any]:
        """Return a request. Raises PeerFailed: the brokers have different versions."""
        if (decoder := self._request_decoders.get(name)) is None:
            if (kind := self._kinds.get(name)) is None:
                raise PeerFailed(f"unknown request {name!r}; do the brokers run different versions?")
            decoder = msgspec.msgpack.Decoder(kind, dec_hook=decode_hook)
            self._request_decoders[name] = decoder
        try:
            found: Request[Any] = decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise PeerFailed(f"the {name} of another broker cannot be read: {error}") from error
        return found

    def encode_reply(self, reply: object) -> bytes:
        return self._encode(reply)

    def decode_reply(self, name: str, body: Buffer) -> Any:
        """Return the reply to a request of this type. Raises PeerFailed."""
        if (decode := self._reply_decoders.get(name)) is None:
            decode = self._reply_decoders[name] = reply_decoder(self._kinds[name])
            assert decode is not None, f"{name} does not say what its reply is"
        try:
            return decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise PeerFailed(f"the reply to {name} of another broker cannot be read: {error}") from error


class Machines(Protocol):
    """The state machines of a topic."""

    @property
    def topic(self) -> TopicName: ...

    @property
    def count(self) -> int: ...

    @property
    def codec(self) -> RequestCodec: ...

    @property
    def undo(self) -> Callable[[Request[Any], Any], None] | None: ...

    def leader_of(self, shard: int) -> int | None: ...

    def is_here(self, shard: int) -> bool: ...

    async def ask_local(self, shard: int, request: Request[R]) -> R: ...

    async def ask_loadable(self, shard: int, request: Request[R]) -> list[R]: ...


class Links(Protocol):
    """Connections to other brokers."""

    async def call(self, node_id: BrokerId, value: Request[R], timeout_ms: int, late: Late = None) -> R: ...


class Metadata(Protocol):
    """The image of the cluster."""

    @property
    def image(self) -> ClusterImage: ...

    def subscribe(self, listener: Any) -> None: ...


# A broker that cannot be reached: the request was not sent.
UNREACHABLE: Final = (PeerUnavailable, UnknownBroker, InconsistentClusterId)


def has_not_begun(error: AlpacaError) -> bool:
    """Return whether an attempt has certainly not taken effect, and the next may find a leader."""
    if isinstance(error, NotCoordinator):
        return not error.has_begun
    return isinstance(error, (CoordinatorLoading, *UNREACHABLE))


def is_outcome_unknown(error: AlpacaError) -> bool:
    """Return whether an attempt may or may not have taken effect."""
    if isinstance(error, NotCoordinator):
        return error.has_begun
    return isinstance(error, RequestTimedOut | CoordinatorUnavailable)


def may_be_sent_again(request: Request[Any], error: AlpacaError) -> bool:
    """Return whether a request may be sent again after this error without taking effect twice."""
    return has_not_begun(error) or (request.may_be_repeated and is_outcome_unknown(error))


def left_ms(deadline: float, now: float) -> int:
    return max(int((deadline - now) * 1000), 0)


class ShardCalls:
    """Routes requests to state machines of any broker, and answers those of other brokers."""

    def __init__(
        self, links: Links, metadata: Metadata, node_id: BrokerId, stats: ForwardStats | None = None
    ) -> None:
        self._links = links
        self._metadata = metadata
        self._node_id = node_id
        self._stats = stats if stats is not None else ForwardStats()
        self._topics: dict[str, Machines] = {}
        # Attempts that wait for another leader, and calls to the brokers that led when they were sent.
        self._waiting: dict[tuple[str, int], set[asyncio.Future[None]]] = {}
        self._in_flight: dict[tuple[str, int], dict[asyncio.Timeout, int]] = {}
        metadata.subscribe(self._image_changed)

    def add(self, machines: Machines) -> None:
        """Answer requests to these machines."""
        self._topics[machines.topic] = machines

    @property
    def handlers(self) -> Mapping[type[msgspec.Struct], Any]:
        """The handlers of calls from other brokers."""
        return {ShardCall: self._serve, ShardsCall: self._serve_all}

    async def ask(self, machines: Machines, shard: int, request: Request[R]) -> R:
        """Return the reply of a machine, or raise it if it is an error. Cancelling withdraws the request."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + FOLLOW_SECONDS + request.max_wait_ms / 1000
        attempt = request
        backoff = FIRST_BACKOFF_SECONDS
        asked: int | None = None
        last: AlpacaError | None = None
        moves = 0
        while True:
            asked = self._target(machines, shard, asked, last)
            try:
                if asked == self._node_id:
                    return await _ask_here(machines, shard, attempt)
                if asked is None:
                    raise NotCoordinator(f"partition {shard} of {machines.topic!r} has no leader")
                return await self._call(machines, shard, BrokerId(asked), attempt, deadline)
            except AlpacaError as error:
                is_stuck = isinstance(error, CoordinatorUnavailable) and type(last) is type(error)
                if is_stuck or not may_be_sent_again(request, error) or loop.time() + backoff >= deadline:
                    raise _final(error) from None
                last = error.with_traceback(None)
            moves += 1
            if moves > MAX_MOVES_AT_ONCE or self._target(machines, shard, asked, last) in (asked, None):
                await self._leader_changed(machines, shard, backoff)
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            if request.max_wait_ms:
                attempt = request.after(int((loop.time() - began) * 1000))

    async def ask_all(self, machines: Machines, request: Request[R]) -> list[R]:
        """Return the replies of all machines, in order, except of those that cannot be loaded.

        The request may be repeated. One call per broker. Raises CoordinatorUnavailable, naming the brokers
        that do not answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FOLLOW_ALL_SECONDS
        backoff = FIRST_BACKOFF_SECONDS
        replies: dict[int, list[R]] = {}
        while True:
            by_broker: dict[int | None, list[int]] = {}
            for shard in range(machines.count):
                if shard not in replies:
                    by_broker.setdefault(self._target(machines, shard), []).append(shard)
            asked = [self._ask_some(machines, *each, request, deadline) for each in by_broker.items()]
            failures: dict[int | None, AlpacaError] = {}
            for broker, answers in zip(by_broker, await asyncio.gather(*asked), strict=True):
                for shard, answer in answers.items():
                    if not isinstance(answer, AlpacaError):
                        replies[shard] = answer
                    elif has_not_begun(answer) or is_outcome_unknown(answer):
                        failures[broker] = answer
                    else:
                        raise answer.with_traceback(None)
            if not failures:
                return [reply for shard in sorted(replies) for reply in replies[shard]]
            if loop.time() + backoff >= deadline:
                raise _unanswered(machines.topic, failures)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)

    def leadership_changed(self, topic: str) -> None:
        """Wake requests to machines of a topic that begin or end on this broker."""
        for (name, _), waiting in self._waiting.items():
            if name == topic:
                _wake(waiting)

    def _target(
        self, machines: Machines, shard: int, refused_by: int | None = None, error: AlpacaError | None = None
    ) -> int | None:
        """Return the broker to ask: this one, the leader, or the one that the last broker asked names."""
        if machines.is_here(shard):
            return self._node_id
        leader = machines.leader_of(shard)
        if isinstance(error, NotCoordinator) and leader == refused_by and error.coordinator is not None:
            return error.coordinator
        return leader

    async def _call(
        self, machines: Machines, shard: int, broker: BrokerId, request: Request[R], deadline: float
    ) -> R:
        kind, body = machines.codec.encode(request)
        call = ShardCall(topic=machines.topic, shard=shard, kind=kind, request=body)
        place = machines.topic, shard
        timeout_ms = left_ms(deadline, asyncio.get_running_loop().time())
        late = None
        if machines.undo is not None:
            late = partial(self._late, machines, request, kind)
        scope = asyncio.timeout(None)
        self._in_flight.setdefault(place, {})[scope] = broker
        try:
            with self._counted(kind):
                async with scope:
                    reply = await self._links.call(broker, call, timeout_ms, late)
            return machines.codec.decode_reply(kind, reply)  # type: ignore[no-any-return]
        except TimeoutError:
            raise RequestTimedOut(
                f"broker {broker} does not lead partition {shard} of {machines.topic!r} any more and did not "
                f"answer {kind}"
            ) from None
        finally:
            in_flight = self._in_flight[place]
            del in_flight[scope]
            if not in_flight:
                del self._in_flight[place]

    @contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        """Count a call and its error."""
        started = perf_counter()
        failure = ""
        try:
            yield
        except (AlpacaError, TimeoutError, asyncio.CancelledError) as error:
            failure = type(error).__name__
            raise
        finally:
            self._stats.called(kind, failure, perf_counter() - started)

    def _late(self, machines: Machines, request: Request[Any], kind: str, reply: msgspec.Raw) -> None:
        """Undo a request whose client was gone when its reply came."""
        with suppress(PeerFailed):
            found = machines.codec.decode_reply(kind, reply)
            if machines.undo is not None:
                machines.undo(request, found)

    async def _ask_some(
        self,
        machines: Machines,
        broker: int | None,
        shards: Sequence[int],
        request: Request[R],
        deadline: float,
    ) -> dict[int, list[R] | AlpacaError]:
        """Ask machines of one broker. Returns for each its reply, nothing, or an error."""
        try:
            if broker is None:
                raise NotCoordinator(f"partitions {list(shards)} of {machines.topic!r} have no leader")
            if broker == self._node_id:
                return {shard: await _or_error(machines, shard, request) for shard in shards}
            kind, body = machines.codec.encode(request)
            call = ShardsCall(topic=machines.topic, shards=tuple(shards), kind=kind, request=body)
            timeout_ms = left_ms(deadline, asyncio.get_running_loop().time())
            with self._counted(kind):
                answers = await self._links.call(BrokerId(broker), call, timeout_ms)
            if len(answers) != len(shards):
                raise PeerFailed(f"broker {broker} sent {len(answers)} answers of {len(shards)}")
            return {
                shard: _read_answer(machines.codec, kind, answer)
                for shard, answer in zip(shards, answers, strict=True)
            }
        except AlpacaError as error:
            return dict.fromkeys(shards, error.with_traceback(None))

    async def _leader_changed(self, machines: Machines, shard: int, timeout_seconds: float) -> None:
        """Return when the image has changed, or this broker begins or ends to host, or after a pause."""
        place = machines.topic, shard
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(place, set())
        waiting.add(changed)
        try:
            await asyncio.wait((changed,), timeout=timeout_seconds)
        finally:
            waiting.discard(changed)
            if not waiting:
                self._waiting.pop(place, None)

    def _image_changed(self, delta: Delta) -> None:
        """Wake requests that wait for a leader, and give up calls to a former one that does not answer."""
        if not self._waiting and not self._in_flight:
            return
        image = self._metadata.image
        for name, shard in {*self._waiting, *self._in_flight}:
            topic = image.topics.get(TopicName(name))
            if topic is None or PartitionId(topic.id, shard) not in delta.partitions:
                continue
            _wake(self._waiting.get((name, shard), ()))
            leader = self._topics[name].leader_of(shard)
            gives_up_at = asyncio.get_running_loop().time() + FORMER_LEADER_SECONDS
            for scope, broker in self._in_flight.get((name, shard), {}).items():
                if broker != leader and scope.when() is None:
                    scope.reschedule(gives_up_at)

    async def _serve(self, call: ShardCall, _peer: Peer) -> msgspec.Raw:
        machines = self._machines(call.topic)
        request = machines.codec.decode(call.kind, call.request)
        return msgspec.Raw(machines.codec.encode_reply(await _ask_here(machines, call.shard, request)))

    async def _serve_all(self, call: ShardsCall, _peer: Peer) -> tuple[ShardAnswer, ...]:
        machines = self._machines(call.topic)
        request = machines.codec.decode(call.kind, call.request)
        answers = []
        for shard in call.shards:
            found = await _or_error(machines, shard, request)
            if isinstance(found, AlpacaError):
                answers.append(ShardAnswer(error=encode_error(found)))
            else:
                answers += [ShardAnswer(machines.codec.encode_reply(each)) for each in found] or [
                    ShardAnswer()
                ]
        return tuple(answers)

    def _machines(self, topic: str) -> Machines:
        if (found := self._topics.get(topic)) is None:
            raise InvalidRequest(f"topic {topic!r} has no state machines")
        return found


async def _ask_here(machines: Machines, shard: int, request: Request[R]) -> R:
    """Ask a machine on this broker. If it cannot reach a third one, it may still have taken effect."""
    try:
        return await machines.ask_local(shard, request)
    except UNREACHABLE as error:
        raise CoordinatorUnavailable(str(error)) from error


def _final(error: AlpacaError) -> AlpacaError:
    """Return the error for the client of a request that is not sent again."""
    if isinstance(error, UNREACHABLE):
        return CoordinatorUnavailable(str(error))
    return error.with_traceback(None)


def _unanswered(topic: str, failures: Mapping[int | None, AlpacaError]) -> AlpacaError:
    """Return the error of a request to all machines, naming the brokers that did not answer."""
    texts = [
        str(error) if broker is None else f"broker {broker} did not answer: {error}"
        for broker, error in failures.items()
    ]
    return CoordinatorUnavailable(f"{topic}: {'; '.join(texts)}")


async def _or_error(machines: Machines, shard: int, request: Request[R]) -> list[R] | AlpacaError:
    try:
        return await machines.ask_loadable(shard, request)
    except AlpacaError as error:
        return error.with_traceback(None)


def _read_answer(codec: RequestCodec, kind: str, answer: ShardAnswer) -> list[Any] | AlpacaError:
    if answer.error is not None:
        return decode_error(answer.error)
    return [] if answer.reply is None else [codec.decode_reply(kind, answer.reply)]


def _wake(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)
