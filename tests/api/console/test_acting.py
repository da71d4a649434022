"""Actions in the console: publish, redrive, cancel, purge; verified over HTTP."""

import httpx
import pytest
from playwright.sync_api import expect

from tests.waiting import eventually

from .browsing import Tab


def read(http: httpx.Client, topic: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (
        http.get(f"/topics/{topic}/messages").raise_for_status().json()["messages"]
    )
    return found


def test_a_message_is_published_with_all_that_the_form_has(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/produce?topic={}", made)
    form = tab.page.locator("form.produce")
    form.get_by_label("Key", exact=True).fill("customer-7")
    form.get_by_label("Value", exact=True).fill('{"item": "tea", "count": 2}')
    form.get_by_role("button", name="JSON").click()
    form.get_by_role("button", name="+ Add a header").click()
    form.get_by_label("Name of the header").fill("source")
    form.get_by_label("Value of the header").fill("by hand")
    form.get_by_label("Partition").fill("1")
    form.get_by_label("Priority lane").select_option("high")
    form.get_by_role("button", name="Publish").click()
    expect(form.locator(".done")).to_contain_text("Published to partition 1 at offset 0.")
    [message] = read(http, made)
    assert message["key"] == "customer-7"
    assert message["value"] == '{"item":"tea","count":2}'
    assert message["headers"] == {"source": "by hand", "alpacamq-lane": "high"}
    form.get_by_role("link", name="See it").click()
    expect(tab.page.locator(".unfolded .json").first).to_contain_text("tea")


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        pytest.param(
            '{"id": 12345678901234567890, "x": 1.10}', '{"id":12345678901234567890,"x":1.10}', id="numbers"
        ),
        pytest.param('"tea"', "tea", id="text"),
        pytest.param("null", None, id="null"),
    ],
)
def test_json_is_published_as_it_was_typed(
    tab: Tab, http: httpx.Client, made: str, typed: str, stored: str | None
) -> None:
    tab.open("/produce?topic={}", made)
    form = tab.page.locator("form.produce")
    form.get_by_label("Value", exact=True).fill(typed)
    form.get_by_role("button", name="JSON").click()
    form.get_by_role("button", name="Publish").click()
    expect(form.locator(".done")).to_contain_text("Published")
    assert [each["value"] for each in read(http, made)] == [stored]


def test_a_refused_message_shows_the_reason_and_keeps_the_form(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    tab.open("/produce?topic={}", made)
    form = tab.page.locator("form.produce")
    form.get_by_label("Value", exact=True).fill("{not json")
    form.get_by_role("button", name="JSON").click()
    form.get_by_role("button", name="Publish").click()
    expect(form.locator(".refused")).to_contain_text("not JSON")
    form.get_by_role("button", name="Text").click()
    form.get_by_label("Partition").fill("99")
    with tab.expecting("404"):
        form.get_by_role("button", name="Publish").click()
        expect(form.locator(".refused")).to_contain_text("no partition 99")
    expect(form.get_by_label("Value", exact=True)).to_have_value("{not json")
    assert read(http, made) == []


def test_a_delayed_message_is_published_and_cancelled(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/produce?topic={}", made)
    form = tab.page.locator("form.produce")
    form.get_by_label("Value", exact=True).fill("later")
    form.get_by_label("Delay", exact=True).fill("2.5")
    form.get_by_label("Unit of the delay").select_option("h")
    form.get_by_role("button", name="Publish").click()
    expect(form.locator(".done")).to_contain_text("Waits until")
    form.get_by_role("link", name="See it").click()
    expect(tab.page.locator("main tbody tr")).to_have_count(1)
    waiting = http.get(f"/topics/{made}/delayed").json()["messages"]
    assert waiting[0]["deliver_at"] - waiting[0]["scheduled"] == pytest.approx(9_000_000, abs=60_000)
    tab.page.get_by_role("button", name="Cancel").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    assert http.get(f"/topics/{made}/delayed").json()["messages"] != []
    tab.page.get_by_role("button", name="Cancel").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    expect(tab.page.get_by_text("No delayed messages in this topic.")).to_be_visible()
    assert http.get(f"/topics/{made}/delayed").json()["messages"] == []


@pytest.fixture
def rejected(http: httpx.Client, made: str) -> str:
    """A topic whose three messages were rejected."""
    poll: dict[str, str | int] = {"topic": made, "max": 10, "wait_ms": 0, "start": "earliest"}
    http.get("/groups/workers/poll", params=poll).raise_for_status()
    messages = [{"value": f"order {n}"} for n in range(3)]
    http.post(f"/topics/{made}/messages", json={"messages": messages}).raise_for_status()
    receipts: list[str] = []
    while len(receipts) < len(messages):
        answer = http.get("/groups/workers/poll", params=poll | {"wait_ms": 5000}).raise_for_status()
        receipts += [each["receipt"] for each in answer.json()["messages"]]
    body = {"receipts": receipts, "reason": "no such cup"}
    http.post("/messages/reject", json=body).raise_for_status()
    letters = f"/topics/{made}.dlq/messages"
    eventually(
        lambda: http.get(letters).status_code == 200 and len(http.get(letters).json()["messages"]) == 3
    )
    return made


def test_dead_letters_are_shown_and_redriven(tab: Tab, http: httpx.Client, rejected: str) -> None:
    tab.open("/queues/workers/{}", rejected)
    expect(tab.figure("Dead letters")).to_have_text("3")
    tab.page.locator("a.stat").filter(has_text="Dead letters").click()
    expect(tab.heading).to_have_text(f"{rejected}.dlq")
    expect(tab.page.locator(".messages .reason")).to_have_text(["no such cup"] * 3)
    tab.page.locator(".messages summary").first.click()
    expect(tab.page.locator(".unfolded .facts")).to_contain_text(rejected)
    tab.button("Redrive all").click()
    task = tab.page.locator(".task")
    expect(task.locator(".badge")).to_have_text("completed")
    expect(task).to_contain_text("3 of 3 moved")
    expect(tab.page.get_by_text("No dead letters.")).to_be_visible()
    assert sorted(str(each["value"]) for each in read(http, rejected)) == sorted(
        f"order {n}" for n in (0, 1, 2, 0, 1, 2)
    )


def test_a_queue_is_purged_only_when_that_is_confirmed(tab: Tab, http: httpx.Client, made: str) -> None:
    poll: dict[str, str | int] = {"topic": made, "wait_ms": 0, "start": "earliest"}
    http.get("/groups/workers/poll", params=poll).raise_for_status()
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}] * 4}).raise_for_status()
    tab.open("/queues/workers/{}", made)
    expect(tab.figure("Ready")).to_have_text("4")
    tab.button("Purge").click()
    tab.page.keyboard.press("Escape")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    expect(tab.figure("Ready")).to_have_text("4")
    tab.button("Purge").click()
    tab.page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    expect(tab.figure("Ready")).to_have_text("0")
    assert len(read(http, made)) == 4
