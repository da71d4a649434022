"""The asyncio client: `async with alpacamq.aio.connect("alpaca://localhost") as mq: …`."""

from alpacamq.client.aio.client import Client, connect
from alpacamq.client.aio.producer import Delivery, RecordMetadata
from alpacamq.client.aio.topic import (
    Queue,
    Topic,
    TopicConsumer,
    TopicProducer,
    TopicReader,
    TopicTransaction,
)
from alpacamq.client.messages import Message

__all__ = [
    "Client",
    "Delivery",
    "Message",
    "Queue",
    "RecordMetadata",
    "Topic",
    "TopicConsumer",
    "TopicProducer",
    "TopicReader",
    "TopicTransaction",
    "connect",
]
