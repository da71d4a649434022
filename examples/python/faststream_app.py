"""FastStream with its Confluent broker, over Kafka's protocol: nothing of AlpacaMQ is needed.

KAFKA=localhost:9092 python faststream_app.py, or `faststream run faststream_app:app`.
"""

import asyncio
import os

from faststream import FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel


class Order(BaseModel):
    """The value of a message."""

    id: int
    item: str


broker = KafkaBroker(os.environ.get("KAFKA", "localhost:9092"))
app = FastStream(broker)


@broker.subscriber("orders", group_id="barista", auto_offset_reset="earliest")
@broker.publisher("drinks")
async def brew(order: Order) -> str:
    return f"{order.item} for {order.id}"


if __name__ == "__main__":
    asyncio.run(app.run())
