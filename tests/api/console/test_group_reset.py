"""Offsets of a group are reset in the browser, after a preview."""

from datetime import UTC, datetime

import httpx
import pytest
from confluent_kafka import Consumer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.waiting import eventually

from .browsing import Tab


@pytest.fixture
def group(http: httpx.Client, made: str) -> str:
    """A group that has committed offset 4 of 6 and 1 of 3 messages of a topic of its name."""
    messages = [{"value": n, "partition": int(n > 5)} for n in range(9)]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    offsets = [
        {"topic": made, "partition": 0, "offset": 4},
        {"topic": made, "partition": 1, "offset": 1},
    ]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    return made


def committed(http: httpx.Client, group: str) -> list[int]:
    return [
        each["offset"] for each in http.get(f"/groups/{group}/offsets").raise_for_status().json()["offsets"]
    ]


def preview(tab: Tab) -> list[list[str]]:
    """Committed, new offset and change of each partition that is shown."""
    tab.button("Preview").click()
    region = tab.page.get_by_role("region", name="Preview")
    expect(region).to_be_visible()
    return [row.locator("td").all_inner_texts()[2:] for row in region.locator("tbody tr").all()]


def test_offsets_are_reset_to_what_the_preview_has_shown(tab: Tab, http: httpx.Client, group: str) -> None:
    tab.open("/groups/{}", group)
    tab.link("Reset offsets").click()
    expect(tab.page.get_by_label("Topic", exact=True)).to_have_value(group)
    assert preview(tab) == [["4", "0", "-4"], ["1", "0", "-1"]]
    assert committed(http, group) == [4, 1]
    tab.page.get_by_label("To", exact=True).select_option("latest")
    expect(tab.page.get_by_role("region", name="Preview")).to_have_count(0)
    assert preview(tab) == [["4", "6", "+2"], ["1", "3", "+2"]]
    # What arrives after the preview is not skipped.
    http.post(f"/topics/{group}/messages", json={"value": "later", "partition": 0}).raise_for_status()
    tab.button("Reset offsets").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog).to_contain_text("0 messages are delivered again, and 4 are skipped")
    dialog.get_by_role("button", name="Reset offsets").click()
    expect(tab.heading).to_have_text(group)
    assert committed(http, group) == [6, 3]


def test_one_partition_is_reset_to_an_offset_or_a_timestamp(tab: Tab, http: httpx.Client, group: str) -> None:
    tab.open("/groups/{}/reset", group)
    tab.page.get_by_label("Partition").fill("0")
    tab.page.get_by_label("To", exact=True).select_option("offset")
    tab.page.get_by_label("Offset", exact=True).fill("99")
    with tab.expecting("416"):
        tab.button("Preview").click()
        expect(tab.page.locator(".refused")).to_contain_text("offset 99 is outside of 0 to 6")
    tab.page.get_by_label("Offset", exact=True).fill("5")
    assert preview(tab) == [["4", "5", "+1"]]
    tab.page.get_by_label("To", exact=True).select_option("timestamp")
    before = datetime(2020, 1, 1, 12, tzinfo=UTC)
    tab.page.get_by_label("Timestamp").fill(before.strftime("%Y-%m-%dT%H:%M:%S"))
    assert preview(tab) == [["4", "0", "-4"]]
    tab.button("Reset offsets").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert committed(http, group) == [4, 1]
    tab.button("Reset offsets").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Reset offsets").click()
    expect(tab.heading).to_have_text(group)
    assert committed(http, group) == [0, 1]


def test_a_group_with_members_has_a_preview_and_the_reason_why_no_more(
    tab: Tab, broker: Broker, http: httpx.Client, group: str
) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group, "client.id": "reader"})
    consumer.subscribe([group])
    eventually(lambda: consumer.poll(0.1) is not None or consumer.assignment())
    tab.open("/groups/{}/reset", group)
    assert preview(tab)[0][1] == "0"
    expect(tab.page.locator(".refused")).to_contain_text("has members (reader)")
    expect(tab.button("Reset offsets")).to_be_disabled()
    consumer.close()


def test_a_group_of_queues_has_no_offsets_to_reset(tab: Tab, http: httpx.Client, made: str) -> None:
    poll: dict[str, str | int] = {"topic": made, "wait_ms": 0}
    http.get(f"/groups/{made}/poll", params=poll).raise_for_status()
    tab.open("/groups/{}", made)
    expect(tab.page.get_by_text("As a queue")).to_be_visible()
    expect(tab.link("Reset offsets")).to_have_count(0)
    tab.open("/groups/{}/reset", made)
    expect(tab.page.get_by_text("This group has no offsets to reset.")).to_be_visible()
