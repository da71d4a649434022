"""Names of another tenant through the Kafka API: answered as unknown ones are, on the same path."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from alpacamq.api.kafka import turns
from alpacamq.api.kafka.connection import Connection
from alpacamq.api.kafka.requests import KafkaRequests
from alpacamq.api.kafka.rights import BY_ID
from alpacamq.protocol.apis import ApiKey
from alpacamq.protocol.messages.cluster import ApiVersionsRequest
from alpacamq.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from alpacamq.security.tenants import TenantLimits
from tests.executed_lines import ExecutedLines
from tests.secured import ADMIN, SecuredBroker, secured_broker

from .test_rights import REQUESTS, Asked, Case
from .wire import Wire, wired

ANNA, BORIS = "anna", "boris"
TENANTS = {ANNA: "crimson", BORIS: "azure"}
# Of anna only. The others are as long.
SECRET, UNKNOWN, EARLIER = "zebra", "other", "first"
# Requests that create what they name in the tenant of the client: what follows depends on what it has.
CREATING = {
    ApiKey.METADATA,
    ApiKey.JOIN_GROUP,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
}


@dataclass(frozen=True)
class Names:
    """The names that a request is made of, in place of those of a test case of its own."""

    name: str
    topic_id: UUID

    def __getattr__(self, attribute: str) -> str:
        if attribute in {"topic", "group", "transactional_id", "new_topic"}:
            return self.name
        raise AttributeError(attribute)


def needs_names_only(make: Callable[[Any], Any]) -> bool:
    first, second = (Names(name, UUID(int=0)) for name in (SECRET, UNKNOWN))
    try:
        return bool(make(first) != make(second))
    except AttributeError:
        return False


def metadata(names: Any) -> Asked:
    topics = [MetadataRequestTopic(name=names.topic)]
    return Asked(MetadataRequest(topics=topics, allow_auto_topic_creation=False))


NAMING = [
    pytest.param(make, id=f"{key.name} {variant}".strip())
    for (key, variant), make in REQUESTS.items()
    if variant != BY_ID and key not in CREATING and needs_names_only(make)
]
NAMING.append(pytest.param(metadata, id="METADATA"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker on which anna has a topic, a group and a transactional id of the secret name."""
    path = tmp_path_factory.mktemp("names")
    with secured_broker(path, users=(ADMIN, *TENANTS)) as secured:
        access = secured.broker.access
        for name, tenant in TENANTS.items():
            secured.call(access.create_tenant(tenant, description="", limits=TenantLimits()))
            secured.call(access.add_member(tenant, f"User:{name}", is_admin=True))
        with wired(secured.addresses[ANNA]) as anna:
            names: Any = Names(SECRET, UUID(int=0))
            for key, variant in (
                (ApiKey.CREATE_TOPICS, ""),
                (ApiKey.INIT_PRODUCER_ID, "with a transactional id"),
                (ApiKey.JOIN_GROUP, ""),
                (ApiKey.OFFSET_COMMIT, ""),
            ):
                asked = REQUESTS[key, variant](names)
                anna.ask(asked.request, asked.version)
        yield secured


class Recorder:
    """Records what requests of all connections execute."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = ExecutedLines()
        # No request pauses because the machine is busy.
        monkeypatch.setattr(turns, "SLICE_SECONDS", 3600.0)
        handle = KafkaRequests.handle

        def recorded(requests: KafkaRequests, connection: Connection, frame: memoryview) -> None:
            self.current.during(handle, requests, connection, frame)

        monkeypatch.setattr(KafkaRequests, "handle", recorded)
        for name in ("spawn", "spawn_while_open"):
            spawn = getattr(Connection, name)
            monkeypatch.setattr(Connection, name, self._recording(spawn))

    def _recording(self, spawn: Callable[..., None]) -> Callable[..., None]:
        def spawned(connection: Connection, work: Any) -> None:
            async def recorded() -> None:
                await self.current.awaiting(work)

            spawn(connection, recorded())

        return spawned


def ask(wire: Wire, recorder: Recorder, make: Callable[[Case], Any], name: str) -> tuple[str, list[Any]]:
    """Return the response, without the name, and the lines that were executed for it."""
    names: Any = Names(name, UUID(int=7))
    asked = make(names)
    recorder.current = lines = ExecutedLines()
    response = wire.ask(asked.request, asked.version)
    recorder.current = ExecutedLines()
    wire.ask(ApiVersionsRequest())  # until then the other request may not have ended
    shown = re.sub(r"<memory at \w+>", "", str(response))
    return shown.replace(name, "NAME"), lines.lines


@pytest.mark.parametrize("make", NAMING)
def test_a_name_of_another_tenant_is_looked_up_as_an_unknown_one(
    secured: SecuredBroker, make: Callable[[Case], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    with wired(secured.addresses[BORIS]) as boris:
        ask(boris, recorder, make, EARLIER)  # what is made once is there
        found, unknown = (ask(boris, recorder, make, name) for name in (SECRET, UNKNOWN))
    assert found[0] == unknown[0]
    assert found[1]
    assert found[1] == unknown[1]
    assert not any(tenant in found[0] for tenant in TENANTS.values())


def test_the_path_of_a_name_that_exists_is_another(
    secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    with wired(secured.addresses[ANNA]) as anna:
        found, unknown = (ask(anna, recorder, metadata, name) for name in (SECRET, UNKNOWN))
    assert found[1] != unknown[1]
