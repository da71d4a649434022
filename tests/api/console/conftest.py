"""A broker and a browser for all tests of the console, and a tab of its own for each."""

import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.brokers import KEPT, Broker

from .browsing import FLAGS, Tab

DESKTOP = {"width": 1280, "height": 860}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("console") / "data", config=KEPT)
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture(scope="session")
def http(broker: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=60) as client:
        yield client


@pytest.fixture(scope="package")  # its event loop would be in the way of asynchronous tests elsewhere
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium to open the console with")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser, broker: Broker) -> Iterator[Tab]:
    """A tab in which nothing may go wrong that the test does not expect."""
    context = browser.new_context(viewport=DESKTOP, color_scheme="light", timezone_id="UTC")  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{broker.http_address}")
    yield tab
    context.close()
    assert tab.errors == []


@pytest.fixture
def made(http: httpx.Client, topic: str) -> str:
    """A topic of the test's own, with two partitions."""
    http.post("/topics", json={"name": topic, "partitions": 2}).raise_for_status()
    return topic
