"""Queues of the asyncio client: delivery, settlement, cuts and crashes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

import psutil
import pytest

import alpacamq
from alpacamq import aio
from alpacamq.client.aio import grpc
from alpacamq.client.aio.queue import Job, Receiver
from tests.brokers import Broker
from tests.conftest import NewBroker
from tests.integration.nodes import Nodes
from tests.waiting import soon

from .relay import Relay


async def filled(mq: aio.Client, topic: str, count: int) -> aio.Queue[str]:
    """Return a queue of messages m0, m1, …"""
    messages = mq.topic(topic, value=str)
    async with messages.producer() as producer:
        for number in range(count):
            producer.send(f"m{number}", partition=0)
    return messages.queue("workers")


async def taken(receiver: Receiver[str], count: int) -> list[Job[str]]:
    return [await asyncio.wait_for(receiver.next(), 30) for _ in range(count)]


async def test_a_block_that_ends_acknowledges_the_job(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 3)
    seen = []
    async for job in queue.receive(credit=1):
        async with job:
            seen.append(job.value)
        if len(seen) == 3:
            break
    assert seen == ["m0", "m1", "m2"]
    # Nothing is left for others.
    await mq.topic(topic, value=str).send("last", partition=0)
    async with queue.receive() as jobs:
        (job,) = await taken(jobs, 1)
        assert (job.value, job.delivery_count) == ("last", 1)


async def test_a_block_that_raises_has_the_job_delivered_again(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 1)
    await queue.configure({"queue.backoff.initial.ms": "1"})
    async with queue.receive() as jobs:
        (job,) = await taken(jobs, 1)
        with pytest.raises(KeyError):
            async with job:
                raise KeyError("no such customer")
        (again,) = await taken(jobs, 1)
        assert (again.value, again.delivery_count) == ("m0", 2)
        await again.ack()


async def test_retry_sets_when_a_job_is_delivered_again(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 1)
    async with queue.receive() as jobs:
        (job,) = await taken(jobs, 1)
        async with job:
            raise alpacamq.Retry("later", after="1ms")
        (again,) = await taken(jobs, 1)
        assert again.delivery_count == 2


async def test_reject_makes_a_dead_letter_with_the_reason(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 1)
    async with queue.receive() as jobs:
        (job,) = await taken(jobs, 1)
        async with job:
            raise alpacamq.Reject("no unicorns left")
    async with asyncio.timeout(30):
        found: bool = await soon(lambda: _exists(mq, f"{topic}.dlq"))
        assert found
        async for letter in mq.topic(f"{topic}.dlq", value=str).read():
            assert letter.value == "m0"
            assert letter.headers["alpacamq-dead-letter-reason"] == b"no unicorns left"
            break


async def _exists(mq: aio.Client, topic: str) -> bool:
    cluster = await mq.cluster()
    return topic in await cluster.topic_names()


async def test_leaving_the_loop_returns_leases_at_once(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 5)
    async for job in queue.receive(credit=5, visibility="1h"):
        assert job.value == "m0"
        break
    async with queue.receive(credit=5) as jobs:
        assert sorted(each.value for each in await taken(jobs, 5)) == [f"m{number}" for number in range(5)]


async def test_a_cancelled_block_returns_its_job_without_counting_it_as_a_failure(
    mq: aio.Client, topic: str
) -> None:
    queue = await filled(mq, topic, 1)
    started = asyncio.Event()

    async def work() -> None:
        async for job in queue.receive(visibility="1h"):
            async with job:
                started.set()
                await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await started.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    async with queue.receive() as jobs:
        assert (await taken(jobs, 1))[0].value == "m0"


async def test_settlements_of_one_turn_are_one_message(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 50)
    async with queue.receive(credit=50) as receiver:
        jobs = await taken(receiver, 50)
        connection = next(each for each in mq.nodes._connections if each.streams)
        protocol = connection._protocol
        before = protocol.connection.messages_sent
        await asyncio.gather(*(_awaited(job) for job in jobs))
        assert protocol.connection.messages_sent == before + 1


async def _awaited(job: Job[str]) -> None:
    await job.ack()


async def test_a_settled_job_cannot_be_settled_again(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 1)
    async with queue.receive() as jobs:
        (job,) = await taken(jobs, 1)
        await job.ack()
        with pytest.raises(alpacamq.AlreadySettled):
            job.nack()


async def test_an_extension_and_an_acknowledgement_of_one_turn_both_succeed(
    mq: aio.Client, topic: str
) -> None:
    queue = await filled(mq, topic, 1)
    async with queue.receive(visibility="10s") as jobs:
        (job,) = await taken(jobs, 1)
        extension, ack = job.extend("1m"), job.ack()
        await extension
        await ack


async def test_an_expired_lease_cannot_be_acknowledged_once_the_message_is_delivered_again(
    mq: aio.Client, topic: str
) -> None:
    queue = await filled(mq, topic, 1)
    async with queue.receive(visibility="50ms") as first, queue.receive(visibility="1h") as second:
        (job,) = await taken(first, 1)
        await job.extend("1ms")
        redelivered = [
            asyncio.create_task(first.next()),
            asyncio.create_task(second.next()),
        ]
        await asyncio.wait(redelivered, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(alpacamq.LeaseLost):
            await job.ack()
        for each in redelivered:
            each.cancel()


async def test_an_unknown_topic_is_refused_with_a_typed_error(mq: aio.Client) -> None:
    with pytest.raises(alpacamq.Refused) as refused:
        async for _ in mq.topic("no-such-topic").queue("workers").receive():
            pass
    assert refused.value.name == "UNKNOWN_TOPIC_OR_PARTITION"
    assert not refused.value.retriable


async def test_credit_bounds_unsettled_jobs(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 10)
    async with queue.receive(credit=3) as jobs, queue.receive(credit=10) as others:
        await taken(jobs, 3)
        # The rest is for others: if the first had more, there would be fewer.
        assert len(await taken(others, 7)) == 7


async def test_several_tasks_share_a_receiver(mq: aio.Client, topic: str) -> None:
    queue = await filled(mq, topic, 100)
    seen: list[str] = []
    async with queue.receive(credit=20) as jobs:

        async def work() -> None:
            with suppress(alpacamq.Closed):
                while True:
                    async with await jobs.next() as job:
                        seen.append(job.value)
                    if len(seen) == 100:
                        jobs.drain()

        await asyncio.gather(*(work() for _ in range(8)))
    assert sorted(seen) == sorted(f"m{number}" for number in range(100))


@pytest.fixture
async def relayed(broker: Broker) -> AsyncIterator[tuple[Relay, aio.Client]]:
    """A client whose gRPC connections pass a relay. The nodes that it discovers are not used."""
    async with Relay(broker.grpc_address) as relay:
        url = f"alpaca://{relay.address}"
        async with aio.connect(url, kafka=broker.kafka) as client:
            yield relay, client


async def test_a_paused_receiver_survives_a_cut(relayed: tuple[Relay, aio.Client], topic: str) -> None:
    relay, mq = relayed
    queue = await filled(mq, topic, 3)
    async with asyncio.timeout(60), queue.receive(credit=3) as receiver:
        for each in await taken(receiver, 3):
            await each.ack()
        receiver.set_credit(0)
        relay.cut()
        await relay.reconnected()
        await soon(lambda: receiver.is_connected)
        await mq.topic(topic, value=str).send("more")
        receiver.set_credit(3)
        assert (await receiver.next()).value == "more"


async def test_a_settlement_cut_off_from_its_result_is_unknown_and_others_are_lost(
    relayed: tuple[Relay, aio.Client], topic: str
) -> None:
    relay, mq = relayed
    queue = await filled(mq, topic, 3)
    async with queue.receive(credit=3) as receiver:
        sent, unsent, done = await taken(receiver, 3)
        await done.ack()
        relay.swallows = True
        before = relay.received
        settlement = sent.ack()
        await soon(lambda: relay.received > before)
        relay.cut()
        with pytest.raises(alpacamq.SettlementUnknown) as unknown:
            await settlement
        assert not unknown.value.retriable
        with pytest.raises(alpacamq.LeaseLost):
            await unsent.ack()
        # The receiver connects again by itself. The confirmed ack holds, the one that was lost with its
        # stream is delivered again, and the unknown one had reached the broker.
        (again,) = await taken(receiver, 1)
        assert again.value == unsent.value
        await again.ack()


async def test_a_receiver_survives_many_cuts(relayed: tuple[Relay, aio.Client], topic: str) -> None:
    relay, mq = relayed
    queue = await filled(mq, topic, 300)
    confirmed: dict[str, int] = {}
    unknown: set[str] = set()
    cuts = 0
    async with asyncio.timeout(120):
        async for job in queue.receive(credit=20):
            assert job.value not in confirmed, "delivered after a confirmed acknowledgement"
            try:
                async with job:
                    pass
                confirmed[job.value] = job.delivery_count
            except alpacamq.SettlementUnknown:
                unknown.add(job.value)
            except alpacamq.LeaseLost:
                pass
            if cuts < 10 and len(confirmed) >= 25 * (cuts + 1):
                cuts += 1
                relay.cut()
            if len(confirmed.keys() | unknown) == 300:
                break
    assert cuts == 10
    assert relay.connections >= 10


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.heavy)])
async def test_a_broker_killed_under_a_receiver_loses_and_repeats_nothing(
    new_broker: NewBroker, topic: str, kills: int
) -> None:
    broker = new_broker()
    broker.start()
    confirmed: set[str] = set()
    unknown: set[str] = set()
    async with aio.connect(f"alpaca://{broker.grpc_address}") as mq:
        queue = await filled(mq, topic, 50 * (kills + 1))
        done = 0
        async with asyncio.timeout(500), queue.receive(credit=10) as receiver:
            while len(confirmed | unknown) < 50 * (kills + 1):
                job = await receiver.next()
                assert job.value not in confirmed, "delivered after a confirmed acknowledgement"
                if done < kills and len(confirmed) >= 40 * (done + 1):
                    done += 1
                    await asyncio.to_thread(broker.restart, kill=True)
                try:
                    await job.ack()
                    confirmed.add(job.value)
                except alpacamq.SettlementUnknown:
                    unknown.add(job.value)
                except alpacamq.LeaseLost:
                    pass
        assert done == kills
    assert {each for each in asyncio.all_tasks() if "alpacamq" in each.get_name()} == set()


async def test_a_broker_that_stops_answering_is_detected(
    new_broker: NewBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc, "KEEPALIVE_S", 0.2)
    monkeypatch.setattr(grpc, "PING_S", 0.5)
    broker = new_broker()
    broker.start()
    async with aio.connect(f"alpaca://{broker.grpc_address}", kafka=broker.kafka) as mq:
        queue = await filled(mq, topic, 2)
        async with queue.receive(credit=2) as receiver:
            job, other = await taken(receiver, 2)
            os.kill(broker.process.pid, signal.SIGSTOP)
            try:
                with pytest.raises(alpacamq.SettlementUnknown):
                    async with asyncio.timeout(60):
                        await job.ack()
                assert not other.is_leased
            finally:
                os.kill(broker.process.pid, signal.SIGCONT)
            (again,) = await taken(receiver, 1)
            await again.ack()


async def test_a_client_that_is_killed_gives_its_jobs_to_others(mq: aio.Client, url: str, topic: str) -> None:
    queue = await filled(mq, topic, 5)
    program = (
        "import alpacamq, sys\n"
        f"with alpacamq.connect({url!r}) as mq:\n"
        f"    with mq.topic({topic!r}).queue('workers').receive(credit=5, visibility='1h') as jobs:\n"
        "        jobs.take()\n"
        "        print('taken', flush=True)\n"
        "        sys.stdin.read()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"taken\n"
    process.kill()
    await process.wait()
    async with queue.receive(credit=5) as jobs:
        assert len(await taken(jobs, 5)) == 5


async def test_closing_a_client_closes_its_receivers_and_connections(url: str, topic: str) -> None:
    before = asyncio.all_tasks()
    mine = psutil.Process()
    async with aio.connect(url) as mq:
        queue = await filled(mq, topic, 1)
        receiver = queue.receive()
        await receiver.__aenter__()
        await taken(receiver, 1)
        ports = {int(url.rpartition(":")[2])}
    assert asyncio.all_tasks() <= before
    left = [each for each in mine.net_connections("tcp") if each.raddr and each.raddr.port in ports]
    assert [each for each in left if each.status == psutil.CONN_ESTABLISHED] == []
    with pytest.raises(alpacamq.Closed):
        await receiver.next()


async def test_a_receiver_moves_to_another_node(nodes: Nodes, topic: str) -> None:
    listed = ",".join(node.grpc for node in nodes)
    async with aio.connect(f"alpaca://{listed}") as mq:
        queue = await filled(mq, topic, 60)
        confirmed: set[str] = set()
        unknown: set[str] = set()
        killed = None
        async with asyncio.timeout(150), queue.receive(credit=10) as receiver:
            while len(confirmed | unknown) < 60:
                job = await receiver.next()
                assert job.value not in confirmed, "delivered after a confirmed acknowledgement"
                if killed is None and len(confirmed) >= 20:
                    used = next(each.address for each in mq.nodes._connections if each.streams)
                    killed = next(node for node in nodes if node.grpc == str(used))
                    killed.kill()
                try:
                    await job.ack()
                    confirmed.add(job.value)
                except alpacamq.SettlementUnknown:
                    unknown.add(job.value)
                except alpacamq.LeaseLost:
                    pass
        assert killed is not None
