"""Every page of the console shows correct data."""

import json
import re
from collections.abc import Mapping

import httpx
import pytest
from confluent_kafka import Consumer
from playwright.sync_api import Route, expect

from tests.brokers import Broker
from tests.waiting import eventually

from .browsing import Tab


def publish(http: httpx.Client, topic: str, *messages: Mapping[str, object]) -> list[dict[str, int]]:
    answer = http.post(f"/topics/{topic}/messages", json={"messages": messages}).raise_for_status().json()
    assert answer["errors"] == 0
    results: list[dict[str, int]] = answer["results"]
    return results


def test_the_overview_shows_health_and_rates(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/")
    expect(tab.page.locator(".heading .badge")).to_have_text("healthy")
    expect(tab.page.locator("#pulse")).to_have_text("live")
    publish(http, made, *[{"value": n} for n in range(500)])
    expect(tab.page.get_by_role("img", name=re.compile("Messages per second: published"))).to_be_visible()
    expect(tab.row(made)).to_be_visible()


def test_a_topic_is_listed_and_described(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(http, made, *[{"value": "x" * 100, "partition": 1} for _ in range(7)])
    http.patch(f"/topics/{made}/settings", json={"settings": {"retention.ms": 3600000}}).raise_for_status()
    tab.open("/topics")
    tab.page.get_by_label("Filter topics by name").fill(made[-12:])
    expect(tab.page.locator("main tbody tr")).to_have_count(1)
    eventually(lambda: tab.cells(made)[:3] == [made, "2", "7"])
    tab.link(made).click()
    expect(tab.heading).to_have_text(made)
    expect(tab.figure("Messages")).to_have_text("7")
    partitions = tab.page.get_by_role("region", name="Partitions").locator("tbody tr")
    eventually(lambda: partitions.nth(1).locator("td").all_inner_texts()[:4] == ["1", "0", "7", "7"])
    tab.page.get_by_text("1 overridden").click()
    eventually(lambda: tab.cells("retention.ms") == ["retention.ms", "3600000", "own"])


def test_a_group_is_shown_with_its_lag_by_partition_and_over_time(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    publish(http, made, *[{"value": n, "partition": 0} for n in range(10)])
    offsets = [{"topic": made, "partition": 0, "offset": 4}]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    tab.open("/groups")
    tab.link(made).click()
    expect(tab.heading).to_have_text(made)
    offsets_row = tab.page.get_by_role("region", name="Offsets").locator("tbody tr")
    eventually(lambda: offsets_row.first.locator("td").all_inner_texts()[:5] == [made, "0", "4", "10", "6"])
    expect(tab.figure("Lag")).to_have_text("6")
    expect(tab.page.get_by_role("img", name=f"Lag over time: {made} 6")).to_be_visible()


def test_a_queue_is_shown_lane_by_lane_and_can_be_peeked_at(tab: Tab, http: httpx.Client, made: str) -> None:
    poll: dict[str, str | int] = {"topic": made, "max": 2, "wait_ms": 0, "start": "earliest"}
    http.get("/groups/workers/poll", params=poll).raise_for_status()
    publish(http, made, *[{"value": f"urgent {n}", "priority": "critical"} for n in range(3)])
    publish(http, made, *[{"value": f"usual {n}"} for n in range(4)])
    http.get("/groups/workers/poll", params=poll | {"wait_ms": 5000}).raise_for_status()
    tab.open("/queues/workers/{}", made)
    expect(tab.figure("In flight")).to_have_text("2")
    expect(tab.figure("Ready")).to_have_text("5")
    eventually(lambda: tab.cells("critical")[2:4] == ["1", "2"])
    eventually(lambda: tab.cells("normal")[2:4] == ["4", "0"])
    tab.page.get_by_text("Peek at the next messages").click()
    expect(tab.page.locator(".messages").get_by_text("usual 3")).to_be_visible()


def test_delayed_messages_are_found_by_topic(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(http, made, {"value": "later", "delay": "2h"}, {"value": "much later", "delay": "3d"})
    tab.open("/delayed")
    eventually(lambda: tab.cells(made)[1:2] == ["2"])
    tab.link(made).click()
    expect(tab.page.locator("main tbody tr")).to_have_count(2)
    expect(tab.row("1 h 59 min")).to_be_visible()


def test_pipelines_are_shown_with_their_latest_reports(tab: Tab, http: httpx.Client) -> None:
    told = {"name": "nightly", "kind": "archive", "started": 1, "updated": 2, "rows": 1234}
    publish(http, "alpacamq-pipelines", {"key": "nightly", "value": told | {"state": "running"}})
    tab.open("/pipelines")
    card = tab.page.locator(".pipeline").filter(has_text="nightly")
    expect(card.locator(".badge")).to_have_text("silent")
    expect(card).to_contain_text("1,234 rows")
    failed = told | {"state": "failed", "error": "<b>no column</b>"}
    publish(http, "alpacamq-pipelines", {"key": "nightly", "value": failed})
    expect(card.locator(".badge")).to_have_text("failed")
    expect(card).to_contain_text("<b>no column</b>")


def test_the_cluster_page_shows_nodes_and_the_replicas_on_them(tab: Tab, made: str) -> None:
    tab.open("/cluster")
    expect(tab.page.locator(".heading .badge")).to_have_text("healthy")
    expect(tab.figure("Controller")).to_have_text("node 1")
    expect(tab.figure("Nodes")).to_have_text("1 of 1")
    expect(tab.figure("Under-replicated")).to_have_text("0")
    eventually(lambda: tab.cells("node 1")[1] == "running")
    expect(tab.page.get_by_role("img", name=re.compile(r"node 1: \d+ leaders, \d+ replicas"))).to_be_visible()
    expect(tab.page.locator(f'.replica.leader[title="{made} 1: leader"]')).to_be_visible()
    tab.button("Offline").click()
    expect(tab.page.get_by_text("No partition is in this state.")).to_be_visible()


def test_the_cluster_page_shows_what_is_wrong(tab: Tab, http: httpx.Client, made: str) -> None:
    status = http.get("/cluster/status").json()
    (node,) = status["nodes"]
    lost = node | {"node_id": 2, "state": "fenced", "fenced": True, "controller": False, "in_sync": 0}
    lost |= {"lag_messages": 1200, "lag_ms": 45_000}
    moving = {"topic": made, "partition": 0, "replicas": [1, 2], "adding": [2], "removing": []}
    status |= {
        "nodes": [node, lost],
        "reassignments": [moving | {"progress": 0.25, "behind": 75, "bytes_left": 4096, "throttle": 1024}],
        "warnings": ["nodes run <b>different</b> versions"],
        "links": [
            {
                "node_id": 2,
                "address": "b:9093",
                "state": "backoff",
                "last_error": "Connection refused",
                "calls_in_flight": 0,
            }
        ],
    }
    status["partitions"] |= {"under_replicated": 1, "offline": 1}
    replicas: dict[str, object] = {
        "topic": made,
        "replicas": [1, 2],
        "eligible": [],
        "adding": [],
        "removing": [],
    }
    replicas |= {"leader_epoch": 3}
    placed = [
        replicas | {"partition": 0, "leader": 1, "in_sync": [1], "states": ["under-replicated"]},
        replicas | {"partition": 1, "leader": None, "in_sync": [], "states": ["offline"]},
    ]
    tab.page.route("**/cluster/status", lambda route: route.fulfill(json=status))
    answer = {"partitions": placed, "total": 7}
    tab.page.route("**/cluster/partitions?*", lambda route: route.fulfill(json=answer))
    tab.open("/cluster")
    expect(tab.page.locator(".heading .badge")).to_have_text("degraded")
    expect(tab.page.locator(".refused")).to_contain_text("<b>different</b>")
    expect(tab.figure("Nodes")).to_have_text("1 of 2")
    expect(tab.figure("Follower lag")).to_have_text("45 s")
    nodes = tab.page.get_by_role("region", name="Nodes").locator("tbody tr")
    expect(nodes.nth(1)).to_contain_text("fenced")
    moves = tab.page.get_by_role("region", name="Reassignments")
    expect(moves).to_contain_text("25 %")
    expect(moves).to_contain_text("/s")
    expect(moves.locator("progress")).to_have_attribute("value", "0.25")
    expect(tab.page.locator(".node.fenced .replica.behind")).to_have_count(2)
    partitions = tab.page.get_by_role("region", name="Partitions")
    expect(partitions.locator("tbody tr").nth(1)).to_contain_text("none")
    expect(tab.page.get_by_text("The first 2 of 7 partitions.")).to_be_visible()
    expect(tab.page.get_by_role("region", name="Links")).to_contain_text("Connection refused")


def test_a_page_that_is_not_there_leads_back(tab: Tab) -> None:
    tab.open("/nowhere/at/all")
    expect(tab.heading).to_have_text("Not found")
    tab.page.get_by_role("link", name="Back to the overview").click()
    expect(tab.heading).to_have_text("Overview")


def test_an_unknown_topic_is_reported(tab: Tab) -> None:
    with tab.expecting("404"):
        tab.open("/topics/no-such-topic")
        expect(tab.page.locator(".refused")).to_contain_text("no-such-topic")


@pytest.mark.parametrize(
    "place",
    [
        "/topics/no-such-topic",
        "/messages/no-such-topic",
        "/queues/no-such-group/no-such-topic",
        "/dead-letters/no-such-topic",
        "/delayed?topic=no-such-topic",
    ],
)
def test_a_page_of_something_that_does_not_exist_has_no_buttons(tab: Tab, place: str) -> None:
    with tab.expecting("404"):
        tab.open(place)
        expect(tab.page.locator(".refused")).to_be_visible()
        actions = tab.page.locator(".heading .actions").locator("a, button")
        expect(actions.filter(visible=True)).to_have_count(0)


def test_a_page_of_something_that_exists_has_its_buttons(tab: Tab, made: str) -> None:
    tab.open("/topics/{}", made)
    expect(tab.link("Browse")).to_be_visible()
    expect(tab.link("Produce")).to_be_visible()


def test_series_that_the_broker_does_not_keep_are_counted(tab: Tab, made: str) -> None:
    def omitting(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "omitted": 1234})

    tab.page.route("**/history?*", omitting)
    tab.open("/")
    expect(tab.page.locator("main")).to_contain_text("the busiest topics only: 1,234 more have none")
    tab.page.unroute_all(behavior="wait")


def test_the_partitions_of_members_of_a_classic_group_are_shown(tab: Tab, broker: Broker, made: str) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": made, "group.protocol": "classic"})
    consumer.subscribe([made])
    eventually(lambda: consumer.poll(0.1) is not None or consumer.assignment())
    tab.open("/groups/{}", made)
    expect(tab.row(f"{made} 0, 1")).to_be_visible()
    consumer.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_switch(tab: Tab, scheme: str) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    tab.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    tab.open("/")
    before = tab.page.evaluate(background)
    switch = tab.page.locator("#theme")
    seen = {"auto": before}
    for chosen in ("light", "dark"):
        switch.click()
        expect(switch).to_have_attribute("title", f"Colours: {chosen}")
        seen[chosen] = tab.page.evaluate(background)
    assert seen["light"] != seen["dark"]
    assert seen["auto"] == seen[scheme]
    tab.page.reload()
    expect(switch).to_have_attribute("title", "Colours: dark")
    assert tab.page.evaluate(background) == seen["dark"]


# Tables that have to be scrolled sideways to be read.
CUT_TABLES = (
    "[...document.querySelectorAll('main .scroll')].some((each) => each.scrollWidth > each.clientWidth)"
)


def test_no_page_is_wider_than_a_phone(tab: Tab, http: httpx.Client, made: str) -> None:
    long = "a" * 300
    publish(http, made, {"key": long, "value": {"text": long, "list": [long]}, "headers": {long: long}})
    publish(http, made, {"value": "later", "delay": "1d"})
    http.get(
        f"/groups/{made}/poll", params={"topic": made, "wait_ms": 0, "start": "earliest"}
    ).raise_for_status()
    for number in (1, 2):
        schema = json.dumps({"type": "string", "title": long, "description": f"{long}{number}"})
        body = {"schema": schema, "schemaType": "JSON"}
        http.post(f"/schemas/subjects/{long}/versions", json=body).raise_for_status()
    tab.page.set_viewport_size({"width": 360, "height": 740})
    places = ["/", "/topics", "/messages", "/produce", "/groups", "/queues", "/delayed", "/pipelines"]
    places += ["/cluster", "/schemas", f"/schemas/{long}", f"/schemas/{long}?version=2&against=1"]
    places += [f"/schema-check?subject={long}"]
    places += [f"/topics/{made}", f"/messages/{made}", f"/groups/{made}", f"/queues/{made}/{made}"]
    places += [f"/delayed?topic={made}", "/new-topic", f"/topics/{made}/edit", f"/groups/{made}/reset"]
    places += [f"/messages/{made}?by=live", f"/messages/{made}?by=filter&at=value.list contains 1"]
    for place in places:
        tab.open(place)
        tab.settle()
        assert tab.overhang == 0, place
    for place in (
        "/topics",
        "/groups",
        "/queues",
        "/cluster",
        f"/topics/{made}",
        f"/groups/{made}",
        f"/queues/{made}/{made}",
    ):
        tab.open(place)
        tab.settle()
        assert not tab.page.evaluate(CUT_TABLES), place
    tab.open(f"/messages/{made}")
    tab.page.locator(".messages summary").first.click()
    expect(tab.page.locator(".json")).to_be_visible()
    assert tab.overhang == 0
    tab.page.get_by_role("button", name="Menu").click()
    tab.page.get_by_role("navigation", name="Pages").get_by_role("link", name="Groups").click()
    expect(tab.heading).to_have_text("Groups")
