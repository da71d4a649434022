"""How a broker is, and what it holds in all, over HTTP."""

import msgspec

from .http import HttpApi, Problem


class BrokerStats(msgspec.Struct, frozen=True, kw_only=True):
    """A broker in a few numbers; None where a part cannot answer now."""

    uptime_ms: int
    topics: int
    partitions: int
    messages: int
    size_bytes: int
    groups: int | None = None
    queues: int = 0
    delayed: int | None = None
    open_transactions: int | None = None

    def plain(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in self.__struct_fields__}


def health(api: HttpApi) -> str | None:
    """What is wrong with the broker; None if all is well."""
    try:
        api.get(["healthz"], dict[str, object])
    except Problem as problem:
        return str(problem)
    return None


def broker_stats(api: HttpApi) -> BrokerStats:
    return api.get(["stats"], BrokerStats)
