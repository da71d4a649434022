"""Long lists in the browser: page by page, filtered, with the choices in the address."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.cli.command import InProcess

from .browsing import Tab


@pytest.fixture(scope="module")
def many(broker: Broker) -> Iterator[list[str]]:
    """More topics than the history keeps, all of one partition."""
    names = [f"listed-{number:03}" for number in range(300)]
    ctl = InProcess(broker.address, broker.http_address)
    ctl.ok("topics", "create", *names, "--partitions", "1")
    yield names
    ctl.ok("topics", "delete", *names, "--yes")


def rows(tab: Tab) -> int:
    return tab.page.locator("main tbody tr").count()


@pytest.mark.parametrize("place", ["/topics", "/messages"])
def test_topics_are_listed_page_by_page_and_found_by_name(tab: Tab, many: list[str], place: str) -> None:
    tab.open(place)
    tab.page.get_by_label("Filter topics by name").fill("LISTED-")
    status = tab.page.get_by_label("Pages", exact=True).get_by_role("status")
    expect(status).to_have_text("1 to 100 of 300")
    assert rows(tab) == 100
    tab.button("Next →").click()
    tab.button("Next →").click()
    expect(status).to_have_text("201 to 300 of 300")
    expect(tab.link(many[299])).to_be_visible()
    expect(tab.button("Next →")).to_be_disabled()
    tab.page.reload()
    expect(status).to_have_text("201 to 300 of 300")
    expect(tab.page.get_by_label("Filter topics by name")).to_have_value("LISTED-")
    tab.page.get_by_label("Filter topics by name").fill(many[123])
    expect(tab.page.locator("main tbody tr")).to_have_count(1)
    expect(tab.link(many[123])).to_be_visible()


def test_the_busiest_topic_of_many_is_shown_first(tab: Tab, http: httpx.Client, many: list[str]) -> None:
    busy = many[-1]
    tab.open("/")
    first = tab.page.get_by_role("region", name="Busiest topics").locator("tbody tr").first

    def publish_more() -> None:
        messages = [{"value": n} for n in range(1000)]
        http.post(f"/topics/{busy}/messages", json={"messages": messages}).raise_for_status()

    publish_more()
    expect(first).to_contain_text(busy)
    expect(tab.page.locator("main")).to_contain_text("the busiest topics only")


def test_groups_are_found_by_name_and_the_filter_is_in_the_address(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    for number in range(3):
        offsets = [{"topic": made, "partition": 0, "offset": 0}]
        http.post(f"/groups/{made}-{number}/offsets", json={"offsets": offsets}).raise_for_status()
    tab.open("/groups")
    tab.page.get_by_label("Filter groups by name").fill(f"{made}-1")
    expect(tab.page.locator("main tbody tr")).to_have_count(1)
    tab.page.reload()
    expect(tab.page.locator("main tbody tr")).to_have_count(1)
    tab.page.get_by_label("Filter groups by name").fill(f"{made}-none")
    expect(tab.page.get_by_text("No group matches.")).to_be_visible()


@pytest.mark.parametrize("place", ["/", "/topics/{}", "/groups/{}", "/queues/{}/{}"])
def test_the_window_of_the_charts_is_in_the_address(
    tab: Tab, http: httpx.Client, made: str, place: str
) -> None:
    poll: dict[str, str | int] = {"topic": made, "wait_ms": 0}
    http.get(f"/groups/{made}/poll", params=poll).raise_for_status()
    tab.open(place, *[made] * place.count("{}"))
    tab.button("1 h").click()
    expect(tab.button("1 h")).to_have_attribute("aria-pressed", "true")
    expect(tab.page).to_have_url(re.compile("window=3600$"))
    tab.page.reload()
    expect(tab.button("1 h")).to_have_attribute("aria-pressed", "true")


def test_internal_topics_stay_chosen(tab: Tab, http: httpx.Client, made: str) -> None:
    offsets = [{"topic": made, "partition": 0, "offset": 0}]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    tab.open("/topics?filter=__consumer")
    expect(tab.page.get_by_text("No topic matches.")).to_be_visible()
    tab.page.get_by_label("Show internal topics").check()
    expect(tab.link("__consumer_offsets")).to_be_visible()
    tab.page.reload()
    expect(tab.link("__consumer_offsets")).to_be_visible()
    expect(tab.page.get_by_label("Show internal topics")).to_be_checked()
