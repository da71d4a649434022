"""[delays]: how many messages may wait for their time, and for how long."""

from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.topics import DAY_MS


class DelaysConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[delays]: messages that wait for their time."""

    max_pending: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000_000,
            description="Messages that may wait at once; further ones are refused. Each takes about 20 bytes "
            "of memory while it is due within eight days, and less before.",
        ),
    ] = 5_000_000
    max_delay_ms: Annotated[
        int, Meta(ge=0, le=3650 * DAY_MS, description="How far ahead a message may be due.")
    ] = 366 * DAY_MS
