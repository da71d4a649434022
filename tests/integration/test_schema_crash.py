"""Registered schemas survive kill -9: no acknowledged schema is missing, and no id is given twice."""

import json
import random
import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import httpx
import pytest

from alpacamq.model.topics import SCHEMAS_TOPIC
from tests.conftest import NewBroker
from tests.ports import lasting_address
from tests.waiting import eventually

from .nodes import running_nodes
from .test_cluster import leaders

CLIENTS = 4
SUBJECTS = 3


def schema_text(client: int, number: int) -> str:
    """Return a schema that no other client registers, and that is compatible with all others."""
    name = f"field_{client}_{number}"
    fields = [{"name": name, "type": "long", "default": number}]
    return json.dumps({"type": "record", "name": "Parcel", "fields": fields}, separators=(",", ":"))


class Registrant(threading.Thread):
    """Registers one schema after the other, each until it is acknowledged by one of the addresses."""

    def __init__(self, number: int, addresses: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.number = number
        # By text; the dict only grows, so that other threads may read it.
        self.acknowledged: dict[str, int] = {}
        self.failure: BaseException | None = None
        self._addresses = addresses
        self._ending = threading.Event()

    def run(self) -> None:
        try:
            with httpx.Client(timeout=30) as http:
                for at in count():
                    if self._ending.is_set():
                        return
                    self._register(http, schema_text(self.number, at), f"subject-{at % SUBJECTS}")
        except BaseException as failure:  # noqa: BLE001 - reported by the test
            self.failure = failure

    def _register(self, http: httpx.Client, text: str, subject: str) -> None:
        for attempt in count():
            address = self._addresses[attempt % len(self._addresses)]
            url = f"http://{address}/schemas/subjects/{subject}/versions"
            try:
                answer = http.post(url, json={"schema": text})
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code < 500:
                answer.raise_for_status()
                self.acknowledged[text] = answer.json()["id"]
                return
            if self._ending.wait(0.05):
                return

    def stop(self) -> None:
        self._ending.set()
        self.join(60)
        if self.failure is not None:
            raise self.failure


class Registrants:
    """Several clients that register schemas at the same time."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._all = [Registrant(number, addresses) for number in range(CLIENTS)]
        for each in self._all:
            each.start()

    def acknowledged(self) -> dict[str, int]:
        """Return the ids of the schemas that were acknowledged so far."""
        return {text: schema_id for each in self._all for text, schema_id in list(each.acknowledged.items())}

    def wait_for_more(self, wanted: int) -> None:
        """Wait until so many more schemas were acknowledged."""
        before = len(self.acknowledged())
        eventually(
            lambda: len(self.acknowledged()) >= before + wanted or any(each.failure for each in self._all),
            within_s=120,
            what=f"{wanted} schemas are registered",
        )

    def stop(self) -> dict[str, int]:
        """Return the ids of all acknowledged schemas. Raises what a client failed with."""
        for each in self._all:
            each.stop()
        return self.acknowledged()


def check(address: str, acknowledged: dict[str, int]) -> None:
    """Check that the registry has every acknowledged schema by its id, and that ids are different."""
    by_id = {schema_id: text for text, schema_id in acknowledged.items()}
    assert len(by_id) == len(acknowledged), "an id was given to two schemas"
    with httpx.Client(base_url=f"http://{address}/schemas", timeout=30) as registry:
        found: dict[int, str] = {}
        for number in range(SUBJECTS):
            # One subject at a time: new versions come after those that were read.
            path = f"/schemas?subjectPrefix=subject-{number}&limit=1000&offset="
            offset = 0
            while page := registry.get(f"{path}{offset}").json():
                offset += len(page)
                for each in page:
                    assert each["id"] not in found, f"id {each['id']} was given twice"
                    found[each["id"]] = each["schema"]
        missing = {schema_id: text for schema_id, text in by_id.items() if found.get(schema_id) != text}
        assert not missing
        for schema_id in list(by_id)[:: max(len(by_id) // 20, 1)]:
            assert registry.get(f"/schemas/ids/{schema_id}").json()["schema"] == by_id[schema_id]


def kill_again_and_again(new_broker: NewBroker, *, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    broker = new_broker(http=lasting_address()).start()
    registrants = Registrants([broker.http_address])
    try:
        for number in range(kills):
            registrants.wait_for_more(dice.randrange(1, 40))
            broker.kill()
            acknowledged = registrants.acknowledged()
            broker.start()
            check_promised(broker.http_address, acknowledged, f"seed {seed}, kill {number}")
    finally:
        acknowledged = registrants.stop()
    check(broker.http_address, acknowledged)
    assert len(acknowledged) >= kills


def check_promised(address: str, acknowledged: dict[str, int], when: str) -> None:
    try:
        check(address, acknowledged)
    except AssertionError as failure:
        raise AssertionError(f"{when}: {failure}") from failure


def test_registered_schemas_survive_kills(new_broker: NewBroker) -> None:
    kill_again_and_again(new_broker, kills=5, seed=20_000)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_a_hundred_kills_lose_no_schema(new_broker: NewBroker) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    kill_again_and_again(new_broker, kills=100, seed=seed)


def test_the_registry_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        registrants = Registrants([node.http for node in nodes])
        try:
            for _ in range(2):
                registrants.wait_for_more(20)
                leader = nodes.by_id[leaders(nodes, SCHEMAS_TOPIC)[0]]
                leader.kill()
                registrants.wait_for_more(20)
                ready = len(leader.events("ready"))
                leader.start()
                leader.wait_until_ready(ready + 1)
        finally:
            acknowledged = registrants.stop()
        for node in nodes:
            check(node.http, acknowledged)
