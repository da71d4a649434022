"""[metrics]: whether the broker counts and times what it does, and how many names that may have."""

from typing import Annotated

import msgspec
from msgspec import Meta


class MetricsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """[metrics]: figures for Prometheus."""

    enabled: Annotated[
        bool, Meta(description="Whether requests are counted and timed, and `/metrics` is served.")
    ] = True
    max_topics: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Topics with figures of their own in `/metrics`; those of the others are added up.",
        ),
    ] = 1000
    max_groups: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="The same for consumer groups, and for queues (a group and a topic).",
        ),
    ] = 1000
