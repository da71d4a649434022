"""Using the console: by keyboard alone, with the tab out of sight, and while the broker is away."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.brokers import Broker
from tests.ports import lasting_address

from .browsing import Tab

HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def focused(tab: Tab) -> str:
    return str(tab.page.evaluate("document.activeElement.textContent.trim()"))


def test_pages_are_reached_by_two_letters(tab: Tab) -> None:
    tab.open("/")
    for letter, heading in (("t", "Topics"), ("q", "Queues"), ("p", "Produce"), ("o", "Overview")):
        tab.page.keyboard.press("g")
        tab.page.keyboard.press(letter)
        expect(tab.heading).to_have_text(heading)


def test_letters_that_are_typed_into_a_field_stay_there(tab: Tab) -> None:
    tab.open("/produce")
    value = tab.page.get_by_label("Value", exact=True)
    value.press_sequentially("g t / ? j")
    expect(value).to_have_value("g t / ? j")
    expect(tab.heading).to_have_text("Produce")


def test_the_keys_are_listed_on_demand(tab: Tab) -> None:
    tab.open("/")
    tab.page.keyboard.press("?")
    dialog = tab.page.get_by_role("dialog", name="Keyboard")
    expect(dialog).to_contain_text("search")
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_topic_is_found_opened_and_read_by_keyboard_alone(tab: Tab, http: httpx.Client, made: str) -> None:
    http.post(f"/topics/{made}/messages", json={"value": {"a": {"b": 1}}, "partition": 0}).raise_for_status()
    keyboard = tab.page.keyboard
    tab.open("/")
    keyboard.press("/")
    keyboard.type(made[:-1])
    expect(tab.page.get_by_role("option", name=made).first).to_be_visible()
    keyboard.press("Enter")
    expect(tab.heading).to_have_text(made)
    expect(tab.page.get_by_text("Browse", exact=True)).to_be_visible()  # once the topic is known
    for _ in range(10):
        keyboard.press("Tab")
        if focused(tab) == "Browse":
            break
    assert focused(tab) == "Browse"
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    keyboard.press("Enter")
    expect(tab.page.locator(".messages li")).to_have_count(1)
    keyboard.press("j")
    keyboard.press("Enter")
    expect(tab.page.locator(".json").first).to_be_visible()


def test_every_control_has_a_name(tab: Tab, http: httpx.Client, made: str) -> None:
    nameless = """() => [...document.querySelectorAll("a, button, input, select, textarea, [role=img]")]
        .filter((each) => each.checkVisibility())
        .filter((each) => !(each.ariaLabel || each.labels?.length || each.textContent.trim() || each.title))
        .map((each) => each.outerHTML)"""
    http.post(f"/topics/{made}/messages", json={"value": "later", "delay": "1d"}).raise_for_status()
    for place in (
        "/",
        "/topics",
        f"/topics/{made}",
        f"/messages/{made}",
        "/produce",
        f"/delayed?topic={made}",
    ):
        tab.open(place)
        tab.settle()
        assert tab.page.evaluate(nameless) == [], place


def test_expanded_elements_stay_open_on_refresh(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/topics")
    link = tab.link(made)
    link.focus()
    kept = link.element_handle()
    http.post(f"/topics/{made}/messages", json={"messages": [{"value": 1}] * 3}).raise_for_status()
    expect(tab.row(made).locator("td").nth(2)).to_have_text("3")
    assert kept is not None
    assert kept.evaluate("each => each.isConnected && each === document.activeElement")


def test_a_hidden_tab_does_not_poll(tab: Tab) -> None:
    tab.page.clock.install()
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.open("/topics")
    expect(tab.page.locator("main table, main .empty").first).to_be_visible()
    tab.page.wait_for_load_state("networkidle")
    tab.page.evaluate(HIDE, True)
    asked.clear()
    tab.page.clock.run_for(60_000)
    assert asked == []
    with tab.page.expect_request("**/topics?*"):
        tab.page.evaluate(HIDE, False)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", http=lasting_address())
    try:
        yield broker.start()
    finally:
        broker.end()


def test_an_unreachable_broker_is_reported_until_it_is_back(browser: Browser, own_broker: Broker) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    tab = Tab(context.new_page(), f"http://{own_broker.http_address}")
    url = f"http://{own_broker.http_address}"
    httpx.post(f"{url}/topics", json={"name": "before", "partitions": 1}).raise_for_status()
    overview = context.new_page()
    overview.goto(f"{url}/console/#/")
    expect(overview.locator(".heading .badge")).to_have_text("healthy")
    tab.open("/topics")
    expect(tab.row("before")).to_be_visible()
    banner = tab.page.locator("#banner")
    expect(banner).to_be_hidden()
    with tab.expecting("ERR_CONNECTION|ERR_EMPTY_RESPONSE|Failed to fetch|503"):
        own_broker.kill()
        expect(banner).to_contain_text("is unreachable")
        expect(tab.page.locator("#pulse")).to_have_text("offline")
        expect(overview.locator(".heading .badge")).to_have_text("unknown")
        expect(tab.row("before")).to_be_visible()
        own_broker.start()
        httpx.post(f"{url}/topics", json={"name": "after", "partitions": 1}).raise_for_status()
        expect(banner).to_be_hidden()
        expect(tab.row("after")).to_be_visible()
        expect(overview.locator(".heading .badge")).to_have_text("healthy")
    context.close()
    assert tab.errors == []
