"""Topics are created, changed and deleted in the browser."""

import httpx
from playwright.sync_api import expect

from .browsing import Tab


def described(http: httpx.Client, topic: str) -> tuple[int, dict[str, str]]:
    """The number of partitions of a topic and its own settings."""
    found = http.get(f"/topics/{topic}").raise_for_status().json()
    return len(found["partitions"]), found["overrides"]


def test_a_topic_is_created_with_partitions_and_settings(tab: Tab, http: httpx.Client, topic: str) -> None:
    tab.open("/topics")
    tab.link("New topic").click()
    tab.page.get_by_label("Name", exact=True).fill(topic)
    tab.page.get_by_label("Partitions").fill("3")
    for number, (name, value) in enumerate((("retention.ms", "3600000"), ("cleanup.policy", "compact"))):
        tab.button("+ Add a setting").click()
        tab.page.get_by_label("Name of the setting").nth(number).fill(name)
        tab.page.get_by_label("Value of the setting").nth(number).fill(value)
    tab.button("Create").click()
    expect(tab.heading).to_have_text(topic)
    assert described(http, topic) == (3, {"retention.ms": "3600000", "cleanup.policy": "compact"})


def test_a_refused_topic_shows_the_reason_and_keeps_the_form(
    tab: Tab, http: httpx.Client, made: str, topic: str
) -> None:
    tab.open("/new-topic")
    tab.page.get_by_label("Name", exact=True).fill(made)
    with tab.expecting("409|422"):
        tab.button("Create").click()
        expect(tab.page.locator(".refused")).to_contain_text("exists")
        tab.page.get_by_label("Name", exact=True).fill(f"{topic}-2")
        tab.button("+ Add a setting").click()
        tab.page.get_by_label("Name of the setting").fill("retention.mss")
        tab.button("Create").click()
        expect(tab.page.locator(".refused")).to_contain_text("retention.ms")
    tab.page.get_by_label("Name of the setting").fill("retention.ms")
    tab.page.get_by_label("Value of the setting").fill("1000")
    tab.button("Create").click()
    expect(tab.heading).to_have_text(f"{topic}-2")
    assert described(http, f"{topic}-2")[1] == {"retention.ms": "1000"}


def test_settings_are_changed_and_reset_and_partitions_added(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/topics/{}", made)
    tab.link("Edit").click()
    expect(tab.heading).to_have_text(f"Edit {made}")
    tab.page.get_by_label("retention.ms", exact=True).fill("60000")
    tab.page.get_by_label("cleanup.policy", exact=True).fill("compact")
    tab.button("Save").click()
    expect(tab.button("Reset retention.ms")).to_be_visible()
    assert described(http, made) == (2, {"retention.ms": "60000", "cleanup.policy": "compact"})
    tab.button("Reset cleanup.policy").click()
    expect(tab.button("Reset cleanup.policy")).to_have_count(0)
    tab.page.get_by_label("segment.ms", exact=True).fill("120000")
    tab.button("Save").click()
    expect(tab.button("Reset segment.ms")).to_be_visible()
    assert described(http, made)[1] == {"retention.ms": "60000", "segment.ms": "120000"}
    with tab.expecting("422"):
        tab.page.get_by_label("retention.ms", exact=True).fill("soon")
        tab.button("Save").click()
        expect(tab.page.locator(".refused")).to_contain_text("retention.ms")
    expect(tab.page.get_by_label("retention.ms", exact=True)).to_have_value("soon")
    tab.page.get_by_label("Filter settings by name").fill("retention")
    expect(tab.page.get_by_label("cleanup.policy", exact=True)).to_be_hidden()
    expect(tab.page.get_by_label("retention.ms", exact=True)).to_be_visible()
    tab.page.get_by_label("Partitions in total").fill("5")
    tab.button("Add partitions").click()
    expect(tab.page.locator("main")).to_contain_text("Now 5.")
    assert described(http, made)[0] == 5


def test_a_topic_is_deleted_once_its_name_is_typed(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/topics/{}/edit", made)
    tab.button("Delete topic").click()
    dialog = tab.page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete", exact=True)
    expect(delete).to_be_disabled()
    dialog.get_by_label(f"Type {made} to confirm").fill(made[:-1])
    expect(delete).to_be_disabled()
    dialog.get_by_role("button", name="Keep").click()
    assert http.get(f"/topics/{made}").status_code == 200
    tab.button("Delete topic").click()
    dialog.get_by_label(f"Type {made} to confirm").fill(made)
    delete.click()
    expect(tab.heading).to_have_text("Topics")
    expect(tab.row(made)).to_have_count(0)
    assert http.get(f"/topics/{made}").status_code == 404


def test_an_internal_topic_has_nothing_to_change(tab: Tab, http: httpx.Client, made: str) -> None:
    offsets = [{"topic": made, "partition": 0, "offset": 0}]
    http.post(f"/groups/{made}/offsets", json={"offsets": offsets}).raise_for_status()
    tab.open("/topics/__consumer_offsets/edit")
    expect(tab.page.get_by_text("An internal topic cannot be changed.")).to_be_visible()
    expect(tab.page.locator("main button")).to_have_count(0)
