"""`--help` of every command: it has examples, and each of them works as printed."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from confluent_kafka import Producer

from alpacamq.cli.main import main, parse
from alpacamq.cli.nouns import NOUNS, parser_of
from alpacamq.cli.reference import Help, all_commands
from alpacamq.client.connect import parse_address
from alpacamq.client.kafka.access import delete_user, find_user, set_password
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.transactional import claim
from alpacamq.security.scram import DEFAULT_ITERATIONS, Mechanism
from tests.brokers import Broker
from tests.waiting import eventually

from .queued import receipts, sent, settled
from .terminals import Terminal


def everything() -> Iterator[Help]:
    yield Help((), "", parser_of([]))
    yield from all_commands()


ROOT = Path(__file__).parents[2]
TRACE = "0af7651916cd43dd8448eb211c80319c"
# They start Spark, which takes its time; tests/spark runs them.
NEED_SPARK = tuple(
    f"alpacactl pipeline {verb}"
    for verb in ("run", "sql", "start", "stop", "restart", "checkpoint", "tables run")
)
# They need several nodes; tests/integration/test_cluster_operations.py runs them.
NEED_NODES = (
    "alpacactl cluster drain",
    "alpacactl cluster remove",
    "alpacactl cluster reassign --topic orders --to",
    "alpacactl cluster reassign --file",
)
# They need a broker with access rules or an audit log; tests/cli/test_acl.py and test_audit.py run them.
NEED_RULES = ("alpacactl acl", "alpacactl audit")
# They need a broker whose users log in; tests/cli/test_token.py runs them.
NEED_LOGIN = ("alpacactl token",)
# They would slow down the other tests of this broker; tests/cli/test_quota.py runs them.
THROTTLE = ("alpacactl quota ",)
NOT_RUN = (*NEED_SPARK, *NEED_NODES, *NEED_RULES, *NEED_LOGIN, *THROTTLE)
# They ask for a password on a terminal; tests/cli/test_user.py runs them.
NEED_TERMINAL = {"alpacactl user create alice", "alpacactl user passwd alice"}
ALL = sorted({example for each in everything() for example in each.examples})
LIVE = "alpacactl top"
# What an example has to begin afresh for, and what others must not find.
CHANGES = ("create", "delete", "partitions", "dlq", "queue", "reset", "alter", "cancel")


class Shop:
    """A broker with what the examples speak of, and a directory with their files."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self._is_stocked = False
        self._http = httpx.Client(base_url=f"http://{broker.http_address}", timeout=30)

    def close(self) -> None:
        self._http.close()

    def open(self, example: str) -> str:
        """Prepare for an example; returns it with what is different every time filled in."""
        if not self._is_stocked or any(word in example for word in CHANGES):
            for name in ("orders", "orders.dlq", "orders-by-hand", "payments", "invoices"):
                self._http.delete(f"/topics/{name}")
            if "topics create orders" not in example:
                self._stock()
            if "topics create" not in example:
                self._make("payments", "invoices", "orders-by-hand")
        self._is_stocked = not any(word in example for word in CHANGES)
        if "pipeline tables enable" in example:
            self._make("prices")
        (self.directory / "orders.txt").write_text("tea\ncake\n")
        shutil.copy(ROOT / "examples" / "pipelines" / "archive.toml", self.directory)
        if "topics compact" in example:
            users = {"name": "users", "settings": {"cleanup.policy": "compact"}}
            self._http.post("/topics", json=users).raise_for_status()
        if "config" in example:
            assert main(["config", "set", "cafe", "--http", self.broker.http_address]) == 0
        if "alpacactl user" in example:
            self._prepare_user(example)
        if "schema" in example:
            self._prepare_schemas()
        if "alpacactl tenant" in example:
            self._prepare_tenant(example)
        if "transactions" in example:
            with Cluster(parse_address(self.broker.address)) as cluster:
                claim(cluster, "till-7", 60_000)
        if "dlq" in example:
            settled(self.broker, "reject", *receipts(self.broker, "orders", max=2), reason="sold out")
            eventually(lambda: self._messages("orders.dlq") == 2)
        return self._filled(example)

    def _prepare_schemas(self) -> None:
        """Have the subjects of the examples, one with three versions, and files."""
        for setting in ("mode", "config"):
            self._http.delete(f"/schemas/{setting}/orders-value")
        for permanent in ("false", "true"):
            self._http.delete("/schemas/subjects/orders-value", params={"permanent": permanent})
        fields: list[object] = [{"name": "id", "type": "long"}]
        for name in ("table", "note", "price"):
            order = json.dumps({"type": "record", "name": "Order", "fields": fields})
            self._http.post(
                "/schemas/subjects/orders-value/versions", json={"schema": order}
            ).raise_for_status()
            fields.append({"name": name, "type": "int", "default": 0})
        self._http.post("/schemas/subjects/money/versions", json={"schema": '"long"'}).raise_for_status()
        order = json.dumps({"type": "record", "name": "Order", "fields": fields})
        (self.directory / "order.avsc").write_text(order)
        (self.directory / "schemas.jsonl").write_text("")

    def _prepare_tenant(self, example: str) -> None:
        """Have the tenant of the examples, unless the example creates it, and one principal."""
        self._http.delete("/admin/tenants/shop")
        if "tenant create" not in example:
            self._http.post("/admin/tenants", json={"id": "shop"}).raise_for_status()
            self._http.put("/admin/tenants/shop/principals/User:alice", json={}).raise_for_status()

    def _prepare_user(self, example: str) -> None:
        """Have the user of the examples, unless the example creates it, and a file with a password."""
        (self.directory / "alice.txt").write_text("secret\n")
        with Cluster(parse_address(self.broker.address)) as cluster:
            if find_user(cluster, "alice") is not None:
                delete_user(cluster, "alice")
            if "user create" not in example:
                set_password(cluster, "alice", "old", Mechanism, DEFAULT_ITERATIONS)

    def _stock(self) -> None:
        self._make("orders")
        sent(self.broker, "orders", *map(str, range(17)))
        sent(self.broker, "orders", "traced", headers={"traceparent": f"00-{TRACE}-{'1' * 16}-01"})
        offsets = {"offsets": [{"topic": "orders", "partition": 0, "offset": 2}]}
        self._http.post("/groups/kitchen/offsets", json=offsets).raise_for_status()
        for group in ("queue", "billing"):
            query: dict[str, str | int] = {"topic": "orders", "max": 1, "wait_ms": 0}
            self._http.get(f"/groups/{group}/poll", params=query).raise_for_status()

    def _make(self, *names: str) -> None:
        for name in names:
            self._http.post("/topics", json={"name": name, "partitions": 3}).raise_for_status()

    def _messages(self, topic: str) -> int:
        answer = self._http.get(f"/topics/{topic}")
        partitions = answer.json()["partitions"] if answer.is_success else []
        return sum(each["end_offset"] or 0 for each in partitions)

    def _open_transaction(self, topic: str) -> int:
        """Write to a topic in a transaction that stays open; returns the offset there."""
        offsets: list[int] = []
        producer = Producer({"bootstrap.servers": self.broker.address, "transactional.id": "till-8"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(
            topic,
            value="x",
            partition=0,
            on_delivery=lambda _error, message: offsets.append(message.offset()),
        )
        producer.flush()
        return offsets[0]

    def _filled(self, example: str) -> str:
        if "RECEIPT" in example:
            return example.replace("RECEIPT", receipts(self.broker, "orders", max=1)[0])
        if "0:17" in example and "delayed" in example:
            message = {"value": "x", "partition": 0, "delay_ms": 3_600_000}
            answer = self._http.post("/topics/orders/messages", json={"messages": [message]})
            return example.replace("0:17", f"0:{answer.json()['results'][0]['delayed_id']}")
        if "schema get --id 7" in example:
            latest = self._http.get("/schemas/subjects/orders-value/versions/latest").json()
            return example.replace("7", str(latest["id"]))
        if "http://localhost:8085" in example:
            return example.replace("localhost:8085", self.broker.registry_address)
        if "--start-offset 41" in example:
            return example.replace("41", str(self._open_transaction("payments")))
        if "key delete KEY" in example or "key rotate KEY" in example:
            return example.replace("KEY", self._http.post("/keys", json={"owner": "shop"}).json()["id"])
        if example.endswith("dlq cancel ID"):
            slow = {"messages_per_second": 1}
            answer = self._http.post("/topics/orders.dlq/dead-letters/redrive", json=slow)
            return example.replace("ID", answer.json()["id"])
        return example


@pytest.fixture(scope="module")
def opened(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(broker, tmp_path_factory.mktemp("shop"))
    yield shop
    shop.close()


@pytest.fixture
def shop(opened: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("ALPACAMQ_ADDRESS", opened.broker.http_address)
    monkeypatch.chdir(opened.directory)
    return opened


@pytest.mark.parametrize(
    "example", [each for each in ALL if not each.startswith(NOT_RUN) and each not in {LIVE, *NEED_TERMINAL}]
)
def test_an_example_works_as_printed(
    example: str, shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = shop.open(example)
    words = shlex.split(command)
    capfd.readouterr()
    if words[0] == "alpacactl" and not {"|", ">", "<"} & set(words):
        assert main(words[1:]) == 0, capfd.readouterr().err
        return
    alpacactl = shop.directory / "alpacactl"
    alpacactl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m alpacamq.cli.main "$@"\n')
    alpacactl.chmod(0o755)
    if "jq" in words and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    monkeypatch.setenv("PATH", f"{shop.directory}:{os.environ['PATH']}")
    ran = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr


def test_the_live_example_runs(broker: Broker) -> None:
    command = [sys.executable, "-m", "alpacamq.cli.main", *shlex.split(LIVE)[1:]]
    with Terminal(command, {**os.environ, "ALPACAMQ_ADDRESS": broker.http_address}) as top:
        top.wait_for("q quit")
        top.press("q")
        assert top.ended() == 0


@pytest.mark.parametrize("example", [each for each in ALL if each.startswith(NOT_RUN)])
def test_an_example_that_needs_more_than_a_broker_is_valid(example: str) -> None:
    assert hasattr(parse(shlex.split(example)[1:]), "run")


@pytest.mark.parametrize("words", [each.words for each in everything()], ids=" ".join)
def test_every_help_has_examples_of_its_own_and_fits_sixty_columns(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    said, _, examples = capsys.readouterr().out.partition("examples:\n")
    assert all(len(line) <= 60 for line in said.splitlines())
    assert any(" ".join(("alpacactl", *words)) in line for line in examples.splitlines())


def test_every_option_is_explained() -> None:
    for words, _, parser in everything():
        for action in parser._actions:
            if action.option_strings:
                assert action.help, f"{' '.join(words)} {action.option_strings}"


def test_help_imports_little_and_no_client() -> None:
    """Imports are most of the time that help takes; their number is the same on a busy machine."""
    code = (
        "import sys; from contextlib import suppress; from alpacamq.cli.main import main\n"
        f"for noun in {list(NOUNS)!r}:\n"
        "    with suppress(SystemExit): main([noun, '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stderr.split()
    assert len(loaded) < 220
    for heavy in ("alpacamq.protocol", "alpacamq.client", "msgspec", "http.client", "asyncio", "pyspark"):
        assert heavy not in loaded
