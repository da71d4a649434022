"""The client of the project. It connects on first use: each process that a server forks has its own."""

from typing import TypedDict

from django.conf import settings

import alpacamq


class OrderPlaced(TypedDict):
    """An event."""

    id: int


mq = alpacamq.connect(settings.ALPACAMQ_URL)
orders = mq.topic("orders", value=OrderPlaced)
