"""`alpacactl tenant`."""

from collections.abc import Iterator

import pytest

from .command import Command


@pytest.fixture
def bakery(ctl: Command) -> Iterator[str]:
    """A tenant, deleted after the test."""
    ctl.ok("tenant", "create", "bakery", "--limit", "topics=2", "--description", "web shop")
    yield "bakery"
    if any(each["id"] == "bakery" for each in ctl.json("tenant", "list")):
        ctl.ok("tenant", "delete", "bakery", "--yes")


def test_a_tenant_is_created_changed_shown_and_deleted(ctl: Command, bakery: str) -> None:
    ctl.ok("tenant", "add-principal", bakery, "User:baker", "--admin")
    ctl.ok("tenant", "set", bakery, "--limit", "groups=5", "--limit", "topics=", "--description", "shops")
    shown = ctl.json("tenant", "show", bakery)
    assert shown["limits"] == {"groups": 5}
    assert shown["description"] == "shops"
    assert shown["principals"] == [{"principal": "User:baker", "admin": True}]
    assert shown["usage"]["topics"] == 0
    ctl.ok("topics", "create", "bakery:orders", "--partitions", "3")
    (topic,) = ctl.json("tenant", "topics", bakery)
    assert topic == {"name": "orders", "stored_name": "bakery:orders", "partitions": 3}
    ctl.ok("topics", "delete", "bakery:orders", "--yes")
    ctl.ok("tenant", "remove-principal", bakery, "User:baker", "--yes")
    ctl.ok("tenant", "delete", bakery, "--yes")
    assert bakery not in [each["id"] for each in ctl.json("tenant", "list")]


def test_a_tenant_is_suspended_with_a_reason_and_activated(ctl: Command, bakery: str) -> None:
    ctl.ok("tenant", "suspend", bakery, "--reason", "invoice 17")
    (listed,) = [each for each in ctl.json("tenant", "list") if each["id"] == bakery]
    assert (listed["status"], listed["reason"]) == ("suspended", "invoice 17")
    ctl.ok("tenant", "disable", bakery)
    assert ctl.json("tenant", "show", bakery)["status"] == "disabled"
    ctl.ok("tenant", "activate", bakery)
    shown = ctl.json("tenant", "show", bakery)
    assert (shown["status"], shown["reason"]) == ("active", "")
