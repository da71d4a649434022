"""Every request that can name much is served in slices, and others have their turn in between."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from alpacamq.model.records import Record, write_batch
from alpacamq.protocol.code_generator import MAX_ENTRIES
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages import committed_offsets as committed
from alpacamq.protocol.messages import groups, metadata, offsets, produce, topics, transactions
from alpacamq.protocol.messages.transactions import InitProducerIdRequest
from alpacamq.protocol.notation import Message
from tests.api.kafka.wire import wired
from tests.waiting import eventually

from .attacks import ATTACKS, LOOPS, TARGET, TARGET_PARTITIONS, Attack, framed
from .bystander import TOPIC, committing, receive_frame
from .in_process import LoopTurns, served

# The longest wait allowed for another client, in processor time: other processes do not count.
LONGEST_TURN_MS = 50
SHARE_OF_LONG_TURNS = 0.25
ATTEMPTS = 3
ENTRIES = 20_000

Address = tuple[str, int]


def send(address: Address, *frames: bytes) -> int:
    """Send requests on one connection; how many were answered before the broker hung up."""
    with socket.create_connection(address, timeout=120) as connection:
        answered = 0
        with suppress(ConnectionError):
            connection.sendall(b"".join(frames))
            while answered < len(frames):
                receive_frame(connection)
                answered += 1
    return answered


def create(address: Address, partitions: int = TARGET_PARTITIONS) -> None:
    new = topics.CreatableTopic(name=TARGET, num_partitions=partitions, replication_factor=1)
    assert send(address, framed(topics.CreateTopicsRequest(topics=[new])))


async def longest_turn_ms(address: Address, turns: LoopTurns, attack: Attack, entries: int) -> float:
    frame = attack.frame(entries)
    # The functions that read and write it are compiled when they are first needed.
    await asyncio.to_thread(send, address, attack.frame(1500 if entries > 1500 else 1))
    turns.take_longest_ms()
    await asyncio.to_thread(send, address, frame)
    await asyncio.sleep(0)
    return turns.take_longest_ms()


async def test_no_request_keeps_the_event_loop_busy_for_long(tmp_path: Path) -> None:
    too_long: dict[str, float] = {}
    async with served(tmp_path) as (address, turns):
        await asyncio.to_thread(create, address)
        for attack in ATTACKS:
            # CPU time stolen from the machine counts, so the cost of a request is the least of some runs.
            for _ in range(ATTEMPTS):
                longest_ms = await longest_turn_ms(address, turns, attack, min(ENTRIES, attack.entries))
                if longest_ms <= LONGEST_TURN_MS:
                    break
            else:
                too_long[attack.name] = longest_ms
    assert not too_long


@pytest.mark.heavy
@pytest.mark.parametrize("is_served", [True, False], ids=["just served", "largest"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
async def test_the_largest_request_does_not_either(attack: Attack, is_served: bool, tmp_path: Path) -> None:
    entries = min(attack.served_entries, attack.entries) if is_served else attack.entries
    async with served(tmp_path) as (address, turns):
        await asyncio.to_thread(create, address)
        longest_ms = await longest_turn_ms(address, turns, attack, entries)
    assert longest_ms <= LONGEST_TURN_MS


async def test_several_at_once_take_turns(tmp_path: Path) -> None:
    attack = ATTACKS[1]
    async with served(tmp_path) as (address, turns):
        frame = attack.frame(ENTRIES)
        await asyncio.to_thread(send, address, frame)
        turns.take_longest_ms()
        await asyncio.gather(*(asyncio.to_thread(send, address, frame) for _ in range(12)))
        assert turns.take_share_of_longer(LONGEST_TURN_MS) < SHARE_OF_LONG_TURNS


async def test_a_commit_does_not_wait_for_long_requests_of_others(tmp_path: Path) -> None:
    """Each of them takes far longer than a commit, and there are more than may be under way at once."""
    frame = LOOPS[0].attack.frame(3000)
    commits = 40
    answered = 0
    ending = threading.Event()

    def loop(address: Address) -> None:
        nonlocal answered
        while not ending.is_set():
            send(address, frame)
            answered += 1

    def commit(address: Address) -> tuple[int, int]:
        """Count the long requests answered before the commits and after them."""
        with closing(committing(address)) as client:
            eventually(lambda: answered > LOOPS[0].connections, what="the loops are under way")
            before = answered
            for _ in range(commits):
                client.send()
            return before, answered

    async with served(tmp_path) as (address, _):
        new = topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        await asyncio.to_thread(send, address, framed(topics.CreateTopicsRequest(topics=[new])))
        with ThreadPoolExecutor(LOOPS[0].connections + 1) as threads:
            running = asyncio.get_running_loop()
            loops = [running.run_in_executor(threads, loop, address) for _ in range(LOOPS[0].connections)]
            try:
                before, after = await running.run_in_executor(threads, commit, address)
            finally:
                ending.set()
                await asyncio.gather(*loops)
    # A commit that waited for a place would wait for ten of them.
    assert after - before < 3 * commits


async def test_many_small_requests_in_one_packet_take_several_turns(tmp_path: Path) -> None:
    small = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name="") for _ in range(200)], allow_auto_topic_creation=False
    )
    async with served(tmp_path) as (address, turns):
        await asyncio.to_thread(send, address, framed(small, 4))
        turns.take_longest_ms()
        assert await asyncio.to_thread(send, address, *[framed(small, 4)] * 400) == 400
        assert turns.take_share_of_longer(LONGEST_TURN_MS) < SHARE_OF_LONG_TURNS


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="t")] * (MAX_ENTRIES + 1)),
            id="one array",
        ),
        pytest.param(
            offsets.ListOffsetsRequest(
                topics=[
                    offsets.ListOffsetsTopic(
                        name="t",
                        partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)] * 1000,
                    )
                ]
                * (MAX_ENTRIES // 1000)
            ),
            id="many arrays",
        ),
    ],
)
async def test_too_many_entries_close_the_connection(request_: Message, tmp_path: Path) -> None:
    async with served(tmp_path) as (address, _):
        version = 4 if isinstance(request_, metadata.MetadataRequest) else None
        assert await asyncio.to_thread(send, address, framed(request_, version)) == 0


async def test_a_large_request_is_answered_as_a_small_one_is(tmp_path: Path) -> None:
    """Every partition is answered, in the requested order, however many slices it takes."""
    count = 300
    indexes = list(range(count))

    def ask(address: Address) -> None:
        create(address, count)
        with wired(address) as wire:
            listed = wire.ask(
                offsets.ListOffsetsRequest(
                    topics=[
                        offsets.ListOffsetsTopic(
                            name=TARGET,
                            partitions=[
                                offsets.ListOffsetsPartition(partition_index=index, timestamp=-1)
                                for index in [*indexes, count]
                            ],
                        )
                    ]
                )
            )
            results = listed.topics[0].partitions
            assert [each.partition_index for each in results] == [*indexes, count]
            assert [each.error_code for each in results] == [0] * count + [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]
            offset_of = {index: 1000 + index for index in range(2500)}
            stored = wire.ask(
                committed.OffsetCommitRequest(
                    group_id="g",
                    topics=[
                        committed.OffsetCommitRequestTopic(
                            name=TARGET,
                            partitions=[
                                committed.OffsetCommitRequestPartition(
                                    partition_index=index, committed_offset=offset
                                )
                                for index, offset in offset_of.items()
                            ],
                        )
                    ],
                ),
                9,
            )
            assert [each.error_code for each in stored.topics[0].partitions] == [0] * count + [
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ] * (2500 - count)
            fetched = wire.ask(
                committed.OffsetFetchRequest(
                    groups=[
                        committed.OffsetFetchRequestGroup(
                            group_id="g",
                            topics=[
                                committed.OffsetFetchRequestTopics(
                                    name=TARGET, partition_indexes=list(offset_of)
                                )
                            ],
                        )
                    ]
                ),
                9,
            )
            assert [each.committed_offset for each in fetched.groups[0].topics[0].partitions] == [
                offset_of[index] if index < count else -1 for index in offset_of
            ]

    async with served(tmp_path) as (address, _):
        await asyncio.to_thread(ask, address)


async def test_a_transaction_may_write_to_many_partitions_in_one_request(tmp_path: Path) -> None:
    count = 600

    def ask(address: Address) -> tuple[list[int], int, list[int]]:
        create(address, count)
        with wired(address) as wire:
            producer = wire.ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000), 4)
            batch = write_batch(
                [Record(0, 0, None, b"x")],
                attributes=0x10,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
            )
            data = [produce.PartitionProduceData(index=index, records=batch) for index in range(count)]
            request = produce.ProduceRequest(
                transactional_id="t",
                acks=-1,
                timeout_ms=1000,
                topic_data=[produce.TopicProduceData(name=TARGET, partition_data=data)],
            )
            produced = wire.ask(request, 12)
            ended = wire.ask(
                transactions.EndTxnRequest(
                    transactional_id="t",
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    committed=True,
                ),
                4,
            )
            wanted = [
                offsets.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(count)
            ]
            listed = wire.ask(
                offsets.ListOffsetsRequest(
                    isolation_level=0, topics=[offsets.ListOffsetsTopic(name=TARGET, partitions=wanted)]
                )
            )
        results = produced.responses[0].partition_responses
        ends = [each.offset for each in listed.topics[0].partitions]
        return [each.error_code for each in results], ended.error_code, ends

    async with served(tmp_path) as (address, _):
        codes, end_code, ends = await asyncio.to_thread(ask, address)
    assert codes == [0] * count
    assert end_code == 0
    assert set(ends) <= {1, 2}  # the batch, and the marker behind it where it is written already


async def test_a_partition_that_is_named_twice_is_an_error_as_in_kafka(tmp_path: Path) -> None:
    def ask(address: Address) -> list[int]:
        create(address, 2)
        wanted = [offsets.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in (0, 1, 0)]
        with wired(address) as wire:
            answer = wire.ask(
                offsets.ListOffsetsRequest(topics=[offsets.ListOffsetsTopic(name=TARGET, partitions=wanted)])
            )
        return [each.error_code for each in answer.topics[0].partitions]

    async with served(tmp_path) as (address, _):
        codes = await asyncio.to_thread(ask, address)
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(
            groups.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name=f"p{n}", metadata=b"") for n in range(101)],
            ),
            id="protocols",
        ),
        pytest.param(
            groups.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=10_000,
                protocol_type="consumer",
                protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=bytes(1 << 20))],
            ),
            id="metadata",
        ),
        pytest.param(groups.ListGroupsRequest(states_filter=["Stable"] * 101), id="filters"),
    ],
)
async def test_excessive_requests_are_refused(request_: Message, tmp_path: Path) -> None:
    def ask(address: Address) -> int:
        with wired(address) as wire:
            return int(wire.ask(request_).error_code)

    async with served(tmp_path) as (address, _):
        assert await asyncio.to_thread(ask, address) == ErrorCode.INVALID_REQUEST
