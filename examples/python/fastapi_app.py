"""FastAPI: one client for the life of the application.

ALPACAMQ_URL=alpaca://localhost uvicorn fastapi_app:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from pydantic import BaseModel

from alpacamq import aio


class Order(BaseModel):
    """What clients post, and what the topic stores."""

    id: int
    item: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with aio.connect(os.environ.get("ALPACAMQ_URL", "alpaca://localhost")) as mq:
        app.state.orders = mq.topic("orders", value=Order)
        yield


app = FastAPI(lifespan=lifespan)


def orders(request: Request) -> aio.Topic[Order]:
    found: aio.Topic[Order] = request.app.state.orders
    return found


@app.post("/orders", status_code=202)
async def create_order(order: Order, topic: Annotated[aio.Topic[Order], Depends(orders)]) -> dict[str, int]:
    written = await topic.send(order, key=order.id)
    return {"partition": written.partition, "offset": written.offset}
