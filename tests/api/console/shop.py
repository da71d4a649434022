"""A small shop on the broker, so that pictures of the console have something to show."""

import json
import math
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import httpx

from alpacamq.registry.framing import framed
from alpacamq.registry.languages import parse
from alpacamq.registry.messages import Source
from alpacamq.registry.schema import SchemaType

TOPICS = {"orders": 3, "payments": 2, "page-views": 4, "emails": 1, "stock": 1}
LANES = ("critical", "high", "normal", "normal", "normal", "low", "background")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TICK_S = 0.25
PIPELINES: tuple[dict[str, Any], ...] = (
    {
        "name": "orders-archive",
        "kind": "archive",
        "state": "running",
        "rows": 128_400,
        "lag": 240,
        "batch": 42,
    },
    {
        "name": "enrich-orders",
        "kind": "transform",
        "state": "running",
        "rows": 96_210,
        "lag": 12,
        "batch": 311,
    },
    {"name": "replay-january", "kind": "replay", "state": "done", "rows": 500_000, "batch": 9},
    {
        "name": "letters",
        "kind": "dead-letters",
        "state": "failed",
        "rows": 310,
        "error": "stock.dlq: no such topic",
    },
)

SHIPMENT: tuple[dict[str, Any], ...] = (
    {"name": "order", "type": "long"},
    {
        "name": "parcels",
        "type": {
            "type": "array",
            "items": {
                "type": "record",
                "name": "Parcel",
                "fields": [{"name": "sku", "type": "string"}, {"name": "grams", "type": "int"}],
            },
        },
    },
)
# One more with each version.
SHIPMENT_ADDED: tuple[dict[str, Any], ...] = (
    {"name": "express", "type": "boolean", "default": False},
    {"name": "note", "type": ["null", "string"], "default": None},
)


# A broker whose clients have to log in, whose users_file has this one.
ADMIN = ("admin", "of-admin")
SECURITY = "[security]\nauthentication = true\nacls = true\nsuper_users = ['User:admin']\n"
RULES: tuple[tuple[str, str, str, str, str | None, str | None], ...] = (
    ("User:alice", "allow", "read", "topic", "orders", "literal"),
    ("User:alice", "allow", "read", "group", "analytics", "prefixed"),
    ("User:billing", "allow", "write", "topic", "invoices", "literal"),
    ("User:billing", "allow", "idempotent-write", "cluster", None, None),
    ("User:*", "allow", "describe", "topic", "public.", "prefixed"),
    ("User:intern", "deny", "delete", "topic", "*", "literal"),
)


def open_office(url: str) -> None:
    """Users, access rules, quotas, API keys and a tenant."""
    with httpx.Client(base_url=url, auth=ADMIN, timeout=60) as http:

        def send(method: str, path: str, body: dict[str, Any]) -> None:
            http.request(method, path, json=body).raise_for_status()

        for name in ("alice", "billing", "intern", "warehouse"):
            send("POST", "/users", {"name": name, "password": f"password of {name}"})
        for principal, permission, operation, resource, resource_name, pattern in RULES:
            rule = {"principal": principal, "permission": permission, "operation": operation, "host": "*"}
            named = {} if resource_name is None else {"name": resource_name, "pattern": pattern}
            send("POST", "/acls", rule | {"resource": resource} | named)
        send("PATCH", "/quotas", {"user": "alice", "values": {"consumer_byte_rate": 8 << 20}})
        send("PATCH", "/quotas", {"defaults": ["user"], "values": {"connection_count": 100}})
        send("PATCH", "/quotas", {"ip": "10.0.0.7", "values": {"connection_creation_rate": 5}})
        keys: tuple[tuple[str, str, list[str], int], ...] = (
            ("alice", "dashboards", ["read", "describe"], 90),
            ("billing", "invoices", [], 365),
        )
        for owner, description, scopes, days in keys:
            key = {"owner": owner, "description": description, "scopes": scopes}
            send("POST", "/keys", key | {"expires_in_ms": days * 86_400_000})
        for tenant, description in (("shop", "The web shop"), ("labs", "Experiments")):
            send("POST", "/admin/tenants", {"id": tenant, "description": description})
        limits = {"topics": 20, "storage_bytes": 1 << 30, "groups": 50}
        send("PATCH", "/admin/tenants/shop", {"limits": limits})
        send("PUT", "/admin/tenants/shop/principals/User:warehouse", {"admin": True})
        send("POST", "/admin/tenants/labs/suspend", {"reason": "invoice 17 is not paid"})
    with httpx.Client(base_url=url, auth=("warehouse", "password of warehouse"), timeout=60) as member:
        for name in ("parcels", "pallets", "returns"):
            member.post("/topics", json={"name": name, "partitions": 3}).raise_for_status()


def _shipment(added: int) -> str:
    fields = [*SHIPMENT, *SHIPMENT_ADDED[:added]]
    return json.dumps({"type": "record", "name": "Shipment", "namespace": "shop", "fields": fields})


class Shop:
    """Customers, a till, a warehouse; each a client of the HTTP API."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self._random = Random(7)
        self._ticks = 0
        self._orders = 0
        self._opened_ms = time.time_ns() // 1_000_000

    def open(self) -> None:
        """Topics, queues, delayed mails, pipelines, and a message with a long journey."""
        for name, partitions in TOPICS.items():
            self._post("/topics", {"name": name, "partitions": partitions})
        for group, topic in (("warehouse", "orders"), ("mailer", "emails")):
            self._poll(group, topic, count=1)
        for number in range(14):
            delay_ms = self._random.randrange(60_000, 7_200_000)
            mail = {"to": f"customer-{number}@example.com", "text": "Your order is on its way"}
            self._publish("emails", [{"value": mail, "delay_ms": delay_ms}])
        self._tell(PIPELINES)
        self._ship()

    def _ship(self) -> None:
        """Schemas of all languages, and messages with one of them."""
        self._post("/topics", {"name": "shipments", "partitions": 1})
        for count in range(len(SHIPMENT_ADDED) + 1):
            self._register("shipments-value", _shipment(count))
        self._register("shipments-key", '"string"')
        self._register("refunds-value", '{"type": "object", "required": ["order"]}', "JSON")
        customer = 'syntax = "proto3";\nmessage Customer { int64 id = 1; string country = 2; }'
        self._register("customers-value", customer, "PROTOBUF")
        latest = self.http.get("/schemas/subjects/shipments-value/versions/latest").json()
        schema = parse(Source(SchemaType.AVRO, latest["schema"]))
        for number in range(6):
            parcels = [{"sku": "tea-01", "grams": 250 + 10 * number}]
            value = {"order": 1000 + number, "parcels": parcels, "express": number % 2 == 0, "note": None}
            data = b64encode(framed(latest["id"], schema.encode(value))).decode()
            self._publish("shipments", [{"key": f"customer-{number}", "value_base64": data}])

    def _register(self, subject: str, schema: str, kind: str = "AVRO") -> None:
        self._post(f"/schemas/subjects/{subject}/versions", {"schema": schema, "schemaType": kind})

    def journey(self) -> None:
        """One message: delivered, given back, delivered again, rejected, redriven, and done."""
        header = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        self._post("/topics", {"name": "refunds", "partitions": 1})
        self._poll("refunds-desk", "refunds", count=1)
        self._publish(
            "refunds", [{"key": "customer-7", "value": {"order": 1007, "refund": 12.5}, "headers": header}]
        )
        first = self._poll("refunds-desk", "refunds", count=1, wait_ms=5000)
        self._post("/messages/nack", {"receipt": first[0]["receipt"], "delay_ms": 400})
        second = self._poll("refunds-desk", "refunds", count=1, wait_ms=5000)
        self._post("/messages/reject", {"receipt": second[0]["receipt"], "reason": "the bank said no"})
        while self.http.get("/topics/refunds.dlq/messages", params={"wait_ms": 1000}).status_code != 200:
            time.sleep(0.1)
        self._post("/topics/refunds.dlq/dead-letters/redrive", {})
        third = self._poll("refunds-desk", "refunds", count=1, wait_ms=10_000)
        self._post("/messages/ack", {"receipt": third[0]["receipt"]})

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Business as usual, meanwhile."""
        closing = threading.Event()

        def work() -> None:
            while not closing.wait(TICK_S):
                self._tick()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield
        finally:
            closing.set()
            worker.join()

    def _tick(self) -> None:
        self._ticks += 1
        rush = 1 + 0.45 * math.sin(self._ticks / 45) + 0.15 * math.sin(self._ticks / 11)
        views = int(60 * rush) + self._random.randrange(12)
        self._publish(
            "page-views",
            [{"key": f"v{n}", "value": {"path": f"/tea/{n % 9}", "ms": 3 + n % 40}} for n in range(views)],
        )
        self._publish("orders", [self._order() for _ in range(int(6 * rush) + 1)])
        self._publish("payments", [{"value": {"amount": 4.5 * n}} for n in range(int(5 * rush))])
        self._commit("analytics", "page-views", behind=40)
        if self._ticks % 3 == 0:
            self._commit("fraud-check", "payments", behind=25)
        self._deliver(int(8 * rush))
        if self._ticks % 8 == 0:
            self._tell(each for each in PIPELINES if each["state"] == "running")
        if self._ticks % 20 == 0:
            self.http.get("/priority/stats").raise_for_status()  # rates are relative to the previous request

    def _tell(self, pipelines: Iterable[dict[str, Any]]) -> None:
        """What pipelines say of themselves."""
        now_ms = time.time_ns() // 1_000_000
        for told in pipelines:
            news = {
                "rows": told["rows"] + 200 * self._ticks * (told["state"] == "running"),
                "rows_per_second": 812.4,
                "started": self._opened_ms - told["rows"] * 3,
                "updated": now_ms,
            }
            self._publish("alpacamq-pipelines", [{"key": told["name"], "value": told | news}])

    def _order(self) -> dict[str, Any]:
        self._orders += 1
        order = {
            "order": 1000 + self._orders,
            "customer": {
                "id": self._random.randrange(40),
                "country": self._random.choice(["PE", "BO", "CL"]),
            },
            "items": [{"sku": "tea-01", "count": self._random.randrange(1, 5), "price": 4.5}],
            "gift": self._random.random() < 0.2,
            "note": None,
        }
        return {
            "key": f"customer-{order['customer']['id']}",  # type: ignore[index]
            "value": order,
            "headers": {"source": self._random.choice(["web", "app"])},
            "priority": self._random.choice(LANES),
        }

    def _deliver(self, count: int) -> None:
        """The warehouse packs, is still at it with some, and gives up on a few."""
        messages = self._poll("warehouse", "orders", count=count, wait_ms=0)
        receipts = [each["receipt"] for each in messages]
        if receipts and self._ticks % 24 == 0:
            self._post("/messages/reject", {"receipt": receipts.pop(), "reason": "out of stock"})
        packed = [each for each in receipts if self._random.random() < 0.86]
        if packed:
            self._post("/messages/ack", {"receipts": packed})

    def _commit(self, group: str, topic: str, behind: int) -> None:
        parts = self.http.get(f"/topics/{topic}").raise_for_status().json()["partitions"]
        places = [
            {
                "topic": topic,
                "partition": part["partition"],
                "offset": max(part["end_offset"] - self._random.randrange(behind), 0),
            }
            for part in parts
        ]
        self._post(f"/groups/{group}/offsets", {"offsets": places})

    def _poll(self, group: str, topic: str, *, count: int, wait_ms: int = 0) -> list[dict[str, Any]]:
        wanted: dict[str, Any] = {"topic": topic, "max": count, "wait_ms": wait_ms, "start": "earliest"}
        found = self.http.get(f"/groups/{group}/poll", params=wanted | {"visibility_ms": 20_000})
        messages: list[dict[str, Any]] = found.raise_for_status().json()["messages"]
        return messages

    def _publish(self, topic: str, messages: list[dict[str, Any]]) -> None:
        if messages:
            self._post(f"/topics/{topic}/messages", {"messages": messages})

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self.http.post(path, json=body).raise_for_status()
