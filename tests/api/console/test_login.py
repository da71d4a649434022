"""The console of a broker whose clients must authenticate."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.brokers import Broker

from .browsing import Tab
from .conftest import DESKTOP

# Browsers report every refused request.
ADMIN = ("admin", "of-admin")
REFUSED = "Failed to load resource: the server responded with a status of 40[13]"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("locked")
    users = directory / "users"
    users.write_text("admin:of-admin\nother:of-other\n")
    users.chmod(0o600)
    broker = Broker(directory / "data", config=f"[security]\nauthentication = true\nusers_file = '{users}'\n")
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def api(locked: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{locked.http_address}", auth=ADMIN, timeout=60) as client:
        yield client


@pytest.fixture
def stranger(browser: Browser, locked: Broker) -> Iterator[Tab]:
    """A tab that is not logged in."""
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{locked.http_address}")
    with tab.expecting(REFUSED):
        yield tab
    context.close()
    assert tab.errors == []


def log_in(tab: Tab, user: str, word: str) -> None:
    tab.page.get_by_label("User").fill(user)
    tab.page.get_by_label("Password", exact=True).fill(word)
    tab.page.locator("form.log-in button.primary").click()


def test_a_page_is_shown_after_the_login_and_messages_can_be_published(
    stranger: Tab, api: httpx.Client, topic: str
) -> None:
    stranger.open("/produce")
    expect(stranger.heading).to_have_text("Log in")
    log_in(stranger, "admin", "wrong")
    expect(stranger.page.get_by_role("alert").last).to_contain_text("wrong user name or password")
    log_in(stranger, *ADMIN)
    expect(stranger.heading).to_have_text("Produce")
    stranger.page.get_by_label("Topic", exact=True).fill(topic)
    stranger.page.get_by_label("Value", exact=True).fill("tea")
    stranger.button("Publish").click()
    expect(stranger.page.locator(".done")).to_contain_text("Published")
    assert api.get(f"/topics/{topic}/messages").json()["messages"][0]["value"] == "tea"


def test_a_login_survives_a_reload_and_ends_with_the_logout(stranger: Tab) -> None:
    stranger.open("/topics")
    log_in(stranger, *ADMIN)
    expect(stranger.heading).to_have_text("Topics")
    stranger.page.reload()
    expect(stranger.heading).to_have_text("Topics")
    assert "alpacamq-" not in str(stranger.page.evaluate("document.cookie"))  # HttpOnly
    stranger.button("Log out").click()
    expect(stranger.heading).to_have_text("Log in")
    stranger.page.reload()
    expect(stranger.heading).to_have_text("Log in")


def test_an_api_key_logs_in_until_it_is_deleted(stranger: Tab, api: httpx.Client) -> None:
    key = api.post("/keys", json={}).raise_for_status().json()
    stranger.open("/topics")
    stranger.button("API key").click()
    stranger.page.get_by_label("API key", exact=True).fill(key["key"])
    stranger.page.locator("form.log-in button.primary").click()
    expect(stranger.heading).to_have_text("Topics")
    api.delete(f"/keys/{key['id']}").raise_for_status()
    expect(stranger.heading).to_have_text("Log in")


def test_a_tab_goes_on_after_another_has_logged_in_as_another_user(stranger: Tab, topic: str) -> None:
    stranger.open("/produce")
    log_in(stranger, *ADMIN)
    expect(stranger.heading).to_have_text("Produce")
    second = Tab(stranger.page.context.new_page(), stranger.url)
    second.open("/topics")
    second.button("Log out").click()
    log_in(second, "other", "of-other")
    expect(second.heading).to_have_text("Topics")
    stranger.page.get_by_label("Topic", exact=True).fill(topic)
    stranger.button("Publish").click()
    # The old token is refused; the page learns the new one, and who it is for, and starts anew.
    expect(stranger.button("Log out")).to_have_attribute("title", "Logged in as other")


def test_scripts_in_names_and_values_are_shown_and_not_run(stranger: Tab, api: httpx.Client) -> None:
    script = "<img src=x onerror=\"document.title='pwned'\"><script>document.title='pwned'</script>"
    group = f"g{script}"
    api.post("/topics", json={"name": "scripted"}).raise_for_status()
    api.post(
        "/topics/scripted/messages", json={"key": script, "value": script, "headers": {script: script}}
    ).raise_for_status()
    api.get(f"/groups/{httpx.QueryParams({'g': group})['g']}/poll", params={"topic": "scripted"})
    stranger.open("/messages/scripted")
    log_in(stranger, *ADMIN)
    expect(stranger.page.locator(".messages li")).to_have_count(1)
    stranger.page.locator(".messages li summary, .messages li button, .messages li a").first.click()
    expect(stranger.page.locator("main")).to_contain_text("<script>document.title='pwned'</script>")
    assert "pwned" not in stranger.page.title()


def test_the_console_cannot_be_framed(stranger: Tab, locked: Broker) -> None:
    with stranger.expecting("frame-ancestors|X-Frame-Options|Refused to|Framing"):
        stranger.page.goto("about:blank")
        stranger.page.set_content(
            f'<iframe id="f" src="http://{locked.http_address}/console/"></iframe>', wait_until="load"
        )
        frame = stranger.page.frames[-1]
        assert frame.url.startswith("chrome-error:")
        assert frame.locator("#nav").count() == 0


def test_answers_are_never_taken_for_pages(api: httpx.Client) -> None:
    for path in ("/topics", "/session", "/console/", "/openapi.json", "/missing"):
        assert api.get(path).headers["x-content-type-options"] == "nosniff", path


def test_a_schema_is_registered_after_the_login(stranger: Tab, api: httpx.Client, topic: str) -> None:
    stranger.open("/schema-check")
    log_in(stranger, *ADMIN)
    expect(stranger.heading).to_have_text("New schema")
    stranger.page.get_by_label("Subject", exact=True).fill(f"{topic}-value")
    stranger.page.get_by_label("Schema", exact=True).fill('"int"')
    # Another tab has logged in again: the page has the token of a session that has ended.
    stranger.page.evaluate(
        "import('./api.js').then(({ session }) => { session.csrfToken = 'that of another session'; })"
    )
    stranger.button("Register").click()
    expect(stranger.page.locator(".done")).to_contain_text("Registered with id")
    assert api.get(f"/schemas/subjects/{topic}-value/versions").json() == [1]
