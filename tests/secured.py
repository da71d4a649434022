"""A broker with access rules in this process, and one Kafka listener for each principal.

Clients of a listener are that principal without having to authenticate.
"""

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from alpacamq.api.kafka.call import Backend
from alpacamq.api.kafka.connection import Connection
from alpacamq.api.kafka.listener import Listener
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.broker.access import Caller, SecuritySettings
from alpacamq.broker.broker import Broker, BrokerSettings
from alpacamq.broker.delegation_tokens import DelegationSettings
from alpacamq.model.ids import BrokerId
from alpacamq.node.config import KafkaConfig
from alpacamq.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from alpacamq.security.principals import user

HOST = "127.0.0.1"
START_S = 30.0
# May do everything.
ADMIN = "admin"
# May do what rules allow.
ALICE = "alice"

T = TypeVar("T")


class As:
    """Serves the requests of a listener as those of a user."""

    def __init__(self, backend: Backend, name: str, latest: dict[str, Connection]) -> None:
        self._requests = KafkaRequests(backend)
        self._name = name
        self._latest = latest

    def handle(self, connection: Connection, frame: memoryview) -> None:
        self._latest[self._name] = connection
        if connection.caller.principal != user(self._name):
            connection.caller = Caller(user(self._name), connection.caller.host)
        self._requests.handle(connection, frame)

    def opened(self, connection: Connection) -> None:
        self._requests.opened(connection)

    def end_turn(self) -> None:
        self._requests.end_turn()


class SecuredBroker:
    """A running broker with access rules."""

    def __init__(
        self, data_directory: Path, *, acls: bool = True, users: Collection[str] = (ADMIN, ALICE)
    ) -> None:
        self._users = users
        self._settings = BrokerSettings(
            node_id=BrokerId(1),
            data_directory=data_directory,
            security=SecuritySettings(
                acls=acls,
                super_users=(user(ADMIN),),
                delegation=DelegationSettings(secret=b"a secret of tests"),
            ),
        )
        # The address of the Kafka listener of each user.
        self.addresses: dict[str, tuple[str, int]] = {}
        # The connection of each user that sent the last request.
        self.latest: dict[str, Connection] = {}
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="secured-broker", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()
        assert self._is_ready.wait(START_S)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    def allow(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Allow alice an operation on a resource."""
        self.create(rule(operation, kind, name))

    def create(self, *rules: Acl) -> None:
        results = self.call(self.broker.access.create_acls(rules))
        assert not any(results.failures), results.failures

    def revoke(self, wanted: AclFilter | None = None) -> None:
        """Remove the rules that match, or all."""
        self.call(self.broker.access.delete_acls([wanted or AclFilter()]))

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the broker."""
        result: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return result.result(START_S)

    def address(self, name: str = ALICE) -> str:
        host, port = self.addresses[name]
        return f"{host}:{port}"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the test
            self._failure = error
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = Broker(self._settings)
        self.broker.open()
        tasks = [asyncio.create_task(self.broker.run())]
        try:
            tasks += self._listen(self._users)
            self._is_ready.set()
            await self._stop.wait()
        finally:
            for task in reversed(tasks):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await self.broker.close()

    def _listen(self, names: Collection[str]) -> Iterator[asyncio.Task[None]]:
        for name in names:
            listener = Listener(HOST, 0, KafkaConfig())
            host, port = self.addresses[name] = listener.bind()
            backend = Backend(broker=self.broker, host=host, port=port)
            yield asyncio.create_task(listener.run(As(backend, name, self.latest), self.broker.quotas))


def rule(
    operation: Operation,
    kind: ResourceType,
    name: str = CLUSTER_NAME,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    """Return a rule about alice."""
    return Acl(kind, name, pattern, str(user(ALICE)), "*", operation, permission)


@contextmanager
def secured_broker(
    data_directory: Path, *, acls: bool = True, users: Collection[str] = (ADMIN, ALICE)
) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(data_directory, acls=acls, users=users)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
