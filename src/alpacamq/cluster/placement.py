"""Replica placement: which brokers get the replicas of new partitions, and of those that move.

Replicas of a partition are on different racks as far as there are racks. Among those, replicas and leaders
are spread evenly within the topic, then within the cluster. The same input gives the same placement; ties are
broken by a number derived from the topic, so that topics do not all begin at the same broker.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from alpacamq.model.errors import InvalidReplication
from alpacamq.model.topics import Topic

from .brokers import BrokerRegistration
from .image import ClusterImage
from .partition_state import PartitionState, Replicas

DEFAULT_FACTOR = 3
_MASK = (1 << 64) - 1


def default_replication_factor(image: ClusterImage) -> int:
    """Return the factor of topics that do not say: a replica on each rack, up to 3.

    Brokers that do not run now count: a topic created while one restarts is as safe as the others.
    """
    racks = {rack_of(broker) for broker in image.brokers.values() if not broker.is_leaving}
    return max(1, min(DEFAULT_FACTOR, len(racks)))


def rack_of(broker: BrokerRegistration) -> str:
    """Return the rack of a broker; one that does not name its rack is a rack of its own."""
    return broker.rack or f"\0{broker.id}"


def place(
    image: ClusterImage, topic: Topic, added: int, factor: int, existing: Sequence[PartitionState] = ()
) -> list[Replicas]:
    """Return the replicas of `added` partitions of a topic, the preferred leader first.

    `existing` are the partitions that the topic has already. Raises InvalidReplication if there are fewer
    brokers than replicas. Brokers that are fenced, shut down or give up their leaders get replicas only if
    there are too few others, and never lead.
    """
    brokers = sorted(image.brokers.values(), key=lambda broker: broker.id)
    staying = [broker for broker in brokers if broker.is_staying]
    absent = [broker for broker in brokers if not (broker.is_staying or broker.is_leaving)]
    if not staying or len(staying) + len(absent) < factor:
        raise InvalidReplication(
            f"replication factor {factor}: {len(staying)} brokers can take replicas now"
            + (f", {len(absent)} are not running" if absent else "")
        )
    seed = topic.id.int & _MASK
    spread = _Spread(image, seed, existing)
    pool, reserve = _Pool(staying, spread, seed), _Pool(absent, spread, seed)
    running = min(factor, len(staying))
    chosen = [pool.take(running) + reserve.take(factor - running) for _ in range(added)]
    return spread.with_leaders(chosen, {broker.id for broker in staying})


def replacement(
    image: ClusterImage, state: PartitionState, leaving: int, load: Mapping[int, int]
) -> int | None:
    """Return the broker that takes over the replica on `leaving`; None if there is none.

    `load` counts what was moved in the same decision already.
    """
    staying = set(state.target_replicas) - {leaving}
    racks = Counter(rack_of(image.brokers[each]) for each in image.brokers if each in staying)
    candidates = (
        (racks[rack_of(broker)], len(image.replicas_on(broker.id)) + load.get(broker.id, 0), int(broker.id))
        for broker in image.brokers.values()
        if broker.is_staying and broker.id not in state.replicas
    )
    return min(candidates, default=(0, 0, None))[2]


class _Rack:
    """The brokers of a rack, least loaded first. Loads are those of the topic that is placed."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.brokers: list[tuple[int, int, int, int]] = []
        self._seed = seed
        self._replicas = 0
        self._size = 0

    def add(self, broker_id: int, load: int, load_of_cluster: int) -> None:
        self._size += 1
        self._replicas += load
        self.put_back(broker_id, load, load_of_cluster)

    def put_back(self, broker_id: int, load: int, load_of_cluster: int) -> None:
        heappush(self.brokers, (load, load_of_cluster, _mixed(self._seed, load, broker_id), broker_id))

    def take(self) -> tuple[int, int, int, int]:
        self._replicas += 1
        return heappop(self.brokers)

    @property
    def key(self) -> tuple[float, int, int, str]:
        tie = _mixed(self._seed, self._replicas, int.from_bytes(self.name.encode()[-8:], "big"))
        load_of_cluster = self.brokers[0][1] if self.brokers else 0
        return self._replicas / self._size, load_of_cluster, tie, self.name


class _Pool:
    """Brokers by rack, from which the replicas of one partition after another are taken."""

    def __init__(self, brokers: Iterable[BrokerRegistration], spread: "_Spread", seed: int) -> None:
        racks: dict[str, _Rack] = {}
        for broker in brokers:
            name = rack_of(broker)
            rack = racks.setdefault(name, _Rack(name, seed))
            rack.add(broker.id, spread.replicas[broker.id], spread.load_of_cluster(broker.id))
        self._racks = [(rack.key, rack) for rack in racks.values()]
        heapify(self._racks)

    def take(self, count: int) -> Replicas:
        """Return `count` brokers: one of each rack, then a second one of each, and so on."""
        taken: list[tuple[_Rack, tuple[int, int, int, int]]] = []
        racks, used = self._racks, list[_Rack]()
        while len(taken) < count:
            if not racks:
                racks = [(rack.key, rack) for rack in used if rack.brokers]
                used = [rack for rack in used if not rack.brokers]
                heapify(racks)
            _, rack = heappop(racks)
            taken.append((rack, rack.take()))
            used.append(rack)
        for rack, (load, load_of_cluster, _, broker_id) in taken:
            rack.put_back(broker_id, load + 1, load_of_cluster)
        for rack in used:
            heappush(racks, (rack.key, rack))
        self._racks = racks
        return tuple(broker_id for _, (_, _, _, broker_id) in taken)


class _Spread:
    """Counts of replicas and leaders, of a topic and of the cluster, while partitions are placed."""

    def __init__(self, image: ClusterImage, seed: int, existing: Iterable[PartitionState]) -> None:
        self._image = image
        self._seed = seed
        self.replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        for state in existing:
            self._leaders[state.replicas[0]] += 1
            self.replicas.update(state.replicas)

    def load_of_cluster(self, broker_id: int) -> int:
        return len(self._image.replicas_on(broker_id))

    def with_leaders(self, chosen: list[Replicas], may_lead: set[int]) -> list[Replicas]:
        """Put the broker that is to lead first, so that leaders are spread evenly."""
        placed = []
        for number, replicas in enumerate(chosen):
            leader = min(
                (replica for replica in replicas if replica in may_lead),
                key=lambda each: (
                    self._leaders[each],
                    self._image.led_by(each),
                    _mixed(self._seed, number, each),
                ),
            )
            self._leaders[leader] += 1
            placed.append(_led_by(replicas, leader))
        while self._shift_leader(placed, may_lead):
            pass
        return placed

    def _shift_leader(self, placed: list[Replicas], may_lead: set[int]) -> bool:
        """Move one leader from a broker with the most to one with fewer, over others if needed.

        Choosing leaders one by one can leave a broker with two more than another.
        """
        most = max(may_lead, key=lambda each: self._leaders[each])
        led: dict[int, list[int]] = {}
        for number, replicas in enumerate(placed):
            led.setdefault(replicas[0], []).append(number)
        # The partition, and the broker that led it, by the broker that could lead it instead.
        reached: dict[int, tuple[int, int]] = {}
        waiting = deque([most])
        while waiting:
            giver = waiting.popleft()
            for number in led.get(giver, ()):
                for taker in placed[number][1:]:
                    if taker == most or taker in reached or taker not in may_lead:
                        continue
                    reached[taker] = (number, giver)
                    if self._leaders[taker] + 1 < self._leaders[most]:
                        self._leaders[taker] += 1
                        self._leaders[most] -= 1
                        while taker != most:
                            number, giver = reached[taker]
                            placed[number] = _led_by(placed[number], taker)
                            taker = giver
                        return True
                    waiting.append(taker)
        return False


def _mixed(seed: int, number: int, other: int) -> int:
    """Return a number that looks random; the same in every process."""
    mixed = (seed + number * 0x9E3779B97F4A7C15 + other * 0xC2B2AE3D27D4EB4F) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return mixed ^ (mixed >> 32)


def _led_by(replicas: Replicas, leader: int) -> Replicas:
    return (leader, *(replica for replica in replicas if replica != leader))
