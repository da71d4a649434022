"""Writes a message with a client and reads it in a group, with the settings of each client."""

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.waiting import eventually

DEADLINE_S = 30.0
# kafka-python tries a wrong password for so long.
BOOTSTRAP_MS = 2000

Settings = dict[str, Any]
OAUTHBEARER = "OAUTHBEARER"


class _AioProvider(AioTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class _Provider(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def confluent_bearer(token: str) -> Settings:
    """Return the settings of confluent-kafka for a bearer token."""
    return {"sasl.mechanism": OAUTHBEARER, "oauth_cb": lambda _: (token, time.time() + 600)}


def aiokafka_bearer(token: str) -> Settings:
    return {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": _AioProvider(token)}


def kafka_python_bearer(token: str) -> Settings:
    return {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": _Provider(token)}


def confluent(settings: Settings, topic: str) -> bytes:
    """Return what was read. Raises KafkaException if the client cannot authenticate."""
    failures: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": failures.append})
    producer.produce(topic, b"tea")
    deadline = time.monotonic() + DEADLINE_S
    while producer.flush(0.1) and time.monotonic() < deadline:
        for failure in failures:
            if failure.code() == KafkaError._AUTHENTICATION:
                producer.purge()
                raise KafkaException(failure)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        message = eventually(lambda: consumer.poll(1.0), within_s=DEADLINE_S)
        assert message.error() is None
        value: bytes = message.value()
        return value
    finally:
        consumer.close()


def aiokafka(settings: Settings, topic: str) -> bytes:
    async def run() -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            async with AIOKafkaProducer(**settings) as producer:
                await producer.send_and_wait(topic, b"tea")
            reading = AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
            async with reading as consumer:
                value: bytes = (await consumer.getone()).value
                return value

    return asyncio.run(run())


def kafka_python(settings: Settings, topic: str) -> bytes:
    producer = KafkaProducer(**settings, max_block_ms=5000, bootstrap_timeout_ms=BOOTSTRAP_MS)
    try:
        producer.send(topic, b"tea").get(DEADLINE_S)
    finally:
        producer.close(timeout=5)
    consumer = KafkaConsumer(
        topic,
        **settings,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    try:
        value: bytes = next(consumer).value
        return value
    finally:
        consumer.close()
