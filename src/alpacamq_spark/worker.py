"""What a Python worker of Spark keeps from one task to the next.

Spark reuses its workers. In a short micro-batch, what a task does besides its rows is most of its time.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from alpacamq.client.connect import Tls
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import Login
from alpacamq.model.address import Address

_MAX_IDLE = 4


class _Frozen:
    """The modules that garbage collections skip."""

    def __init__(self) -> None:
        self.modules = 0


_frozen = _Frozen()


def skip_modules_in_collections() -> None:
    """Exclude the modules loaded so far from garbage collections.

    Spark collects all garbage after every task. With the modules of Spark, Arrow and the connector that takes
    50 ms of CPU time, more than the rest of a small task, and finds nothing in them.
    """
    if len(sys.modules) != _frozen.modules:
        gc.freeze()
        _frozen.modules = len(sys.modules)


class _Idle:
    """The clusters of finished tasks, by their access, the one used last at the end."""

    def __init__(self) -> None:
        self._clusters: dict[tuple[tuple[Address, ...], Login | None, Tls | None], Cluster] = {}

    @contextmanager
    def used(self, servers: Sequence[Address], login: Login | None, tls: Tls | None) -> Iterator[Cluster]:
        key = (tuple(servers), login, tls)
        cluster = self._clusters.pop(key, None)
        if cluster is None:
            cluster = Cluster(*servers, login=login, tls=tls)
        else:
            cluster.close_ended()
        try:
            yield cluster
        except BaseException:
            # A response may be on its way.
            cluster.close()
            raise
        if (other := self._clusters.pop(key, None)) is not None:
            other.close()
        self._clusters[key] = cluster
        if len(self._clusters) > _MAX_IDLE:
            self._clusters.pop(next(iter(self._clusters))).close()


_idle = _Idle()


def connected(
    servers: Sequence[Address], login: Login | None, tls: Tls | None
) -> AbstractContextManager[Cluster]:
    """Connect to brokers for the duration of a block, by the connections of an earlier task if there was one.

    One block at a time uses a connection. Spark ends workers that are idle for a minute, and with them their
    connections.
    """
    return _idle.used(servers, login, tls)
