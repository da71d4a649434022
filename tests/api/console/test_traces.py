"""Traces in the console: found by their message, and shown step by step."""

import httpx
from playwright.sync_api import expect

from .browsing import Tab

TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_a_message_is_followed_from_the_browser_to_its_journey(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    poll: dict[str, str | int] = {"topic": made, "wait_ms": 5000, "start": "earliest"}
    message = {"key": "k", "value": "traced", "partition": 1, "headers": headers}
    http.post(f"/topics/{made}/messages", json=message).raise_for_status()
    [leased] = http.get("/groups/workers/poll", params=poll).raise_for_status().json()["messages"]
    body = {"receipt": leased["receipt"], "reason": "<b>broken</b>"}
    http.post("/messages/reject", json=body).raise_for_status()
    tab.open("/messages/{}?partition=1", made)
    tab.page.locator(".messages summary").first.click()
    tab.link("Trace").click()
    expect(tab.heading).to_have_text("Traces")
    expect(tab.row(f"{made}/1/0").locator(".badge")).to_have_text("dead-lettered")
    tab.link(TRACE[:16]).click()
    expect(tab.heading).to_have_text("Trace")
    steps = tab.page.locator(".journey .what > b")
    expect(steps.filter(has_text="dlq.routed").first).to_be_visible()
    seen = steps.all_inner_texts()
    assert seen[:3] == ["publish.received", "publish.partitioned", "publish.persisted"]
    assert seen.index("consume.fetched") < seen.index("consume.rejected") < seen.index("dlq.routed")
    expect(tab.page.locator(".journey")).to_contain_text("<b>broken</b>")


def test_a_look_at_a_message_is_shown_apart_from_its_journey(tab: Tab, http: httpx.Client, made: str) -> None:
    trace_id = TRACE[::-1]
    message = {"value": "seen", "partition": 0, "headers": {"traceparent": f"00-{trace_id}-{'b' * 16}-01"}}
    http.post(f"/topics/{made}/messages", json=message).raise_for_status()
    tab.open("/messages/{}", made)
    expect(tab.page.locator(".messages summary")).to_have_count(1)
    tab.open(f"/traces/{trace_id}")
    apart = tab.page.locator(".card").filter(has_text="Reads without a group")
    expect(apart.locator("tbody tr")).to_have_count(1)
    steps = tab.page.locator(".journey .what > b").all_inner_texts()
    assert steps == ["publish.received", "publish.partitioned", "publish.persisted"]


def test_a_trace_is_opened_by_its_id_or_reported_as_unknown(tab: Tab) -> None:
    tab.open("/traces")
    with tab.expecting("404"):
        tab.page.get_by_label("Trace id").fill("f" * 32)
        tab.page.get_by_role("button", name="Search").click()
        expect(tab.page.get_by_text("Unknown trace")).to_be_visible()


def test_a_message_without_a_trace_has_none(tab: Tab, made: str) -> None:
    tab.open(f"/traces?topic={made}&partition=0&offset=5")
    expect(tab.page.get_by_text("No trace found")).to_be_visible()
