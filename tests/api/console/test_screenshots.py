"""The pictures of the console in the documentation, which `make screenshots` takes anew.

Each is taken on a desktop and a phone, in light and dark colours.
"""

import base64
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.brokers import Broker

from .browsing import Tab
from .shop import ADMIN, SECURITY, TRACE, Shop, open_office

DOCS = Path(__file__).parents[3] / "docs"
IMAGES = DOCS / "images" / "console"
PAGE = DOCS / "guide" / "console.md"
MAX_BYTES = 120_000
MAX_BYTES_OF_ALL = 6_000_000
QUALITY = 75
# So much of a history that charts are worth looking at.
BUSY_S = 200
# Width, height and pixels of the screen for each pixel of the page.
FORMS = {"desktop": (1280, 800, 1.25), "phone": (390, 844, 1.5)}
SCHEMES = ("light", "dark")
FILTER = "value.customer.id%20%3E%3D%205%20and%20key%20contains%20%22customer%22"


def press(label: str) -> Callable[[Tab], None]:
    """Return an action that presses a button."""

    def act(tab: Tab) -> None:
        tab.page.locator("main").get_by_role("button", name=label).first.click()

    return act


def unfold(text: str) -> Callable[[Tab], None]:
    """Return an action that unfolds a part of a JSON tree."""
    return lambda tab: tab.page.locator(".json").get_by_text(text).first.click()


def wait_for_messages(tab: Tab) -> None:
    expect(tab.page.locator("details").nth(4)).to_be_visible(timeout=30_000)


def create_key(tab: Tab) -> None:
    tab.page.get_by_label("Owner", exact=True).fill("billing")
    tab.page.get_by_label("Description", exact=True).fill("invoices of the night")
    tab.button("Create").click()
    expect(tab.page.locator(".secret")).to_be_visible()


def set_quota(tab: Tab) -> None:
    for label, value in (("Name of the user", "billing"), ("Produce", "1048576"), ("Open connections", "20")):
        tab.page.get_by_label(label, exact=True).fill(value)


def create_rule(tab: Tab) -> None:
    for label, value in (("Principal", "User:billing"), ("Name", "invoices")):
        tab.page.get_by_label(label, exact=True).fill(value)


def check_schema(tab: Tab) -> None:
    tab.page.get_by_label("Subject", exact=True).fill("shipments-value")
    tab.page.get_by_label("Schema", exact=True).fill('{"type": "record", "name": "Shipment", "fields": []}')
    tab.button("Check").click()
    expect(tab.page.locator("main").get_by_role("status")).not_to_be_empty()


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A page as it is shown in the documentation."""

    name: str
    place: str
    # What is done before.
    act: Callable[[Tab], None] | None = None
    # Whether the broker is one whose clients have to log in.
    is_locked: bool = False
    is_logged_in: bool = True


PICTURES = (
    Picture(name="overview", place="/"),
    Picture(name="topics", place="/topics"),
    Picture(name="topic", place="/topics/orders"),
    Picture(name="topic-new", place="/new-topic"),
    Picture(name="topic-edit", place="/topics/orders/edit"),
    Picture(name="topic-delete", place="/topics/stock/edit", act=press("Delete topic")),
    Picture(
        name="messages",
        place="/messages/orders?partition=0&by=offset&at=12&open=0/12",
        act=unfold("customer"),
    ),
    Picture(name="filter", place=f"/messages/orders?by=filter&at={FILTER}"),
    Picture(
        name="live", place="/messages/orders?by=live&at=value.customer.id%20%3E%3D%205", act=wait_for_messages
    ),
    Picture(name="produce", place="/produce?topic=orders"),
    Picture(name="groups", place="/groups"),
    Picture(name="group", place="/groups/analytics"),
    Picture(name="group-reset", place="/groups/analytics/reset", act=press("Preview")),
    Picture(name="queue", place="/queues/warehouse/orders"),
    Picture(name="queue-purge", place="/queues/warehouse/orders", act=press("Purge")),
    Picture(name="dead-letters", place="/dead-letters/orders.dlq"),
    Picture(name="delayed", place="/delayed?topic=emails"),
    Picture(name="schema", place="/schemas/shipments-value?version=3&against=1"),
    Picture(name="schema-check", place="/schema-check", act=check_schema),
    Picture(
        name="decoded",
        place="/messages/shipments?partition=0&by=offset&at=0&open=0/2",
        act=unfold("parcels"),
    ),
    Picture(name="traces", place="/traces"),
    Picture(name="trace", place=f"/traces/{TRACE}"),
    Picture(name="pipelines", place="/pipelines"),
    Picture(name="cluster", place="/cluster"),
    Picture(name="login", place="/topics", is_locked=True, is_logged_in=False),
    Picture(name="users", place="/users", is_locked=True),
    Picture(name="user", place="/users/alice", is_locked=True),
    Picture(name="access-rules", place="/access-rules", is_locked=True),
    Picture(name="rule-new", place="/new-rule", act=create_rule, is_locked=True),
    Picture(name="quotas", place="/quotas", is_locked=True),
    Picture(name="quota-new", place="/quotas/edit", act=set_quota, is_locked=True),
    Picture(name="api-keys", place="/api-keys", is_locked=True),
    Picture(name="api-key-new", place="/new-api-key", act=create_key, is_locked=True),
    Picture(name="tenants", place="/tenants", is_locked=True),
    Picture(name="tenant", place="/tenants/shop", is_locked=True),
)
SHOWN = re.compile(
    r'<picture><source media="\(prefers-color-scheme: dark\)" '
    r'srcset="\.\./images/console/(.+)-dark\.webp">'
    r'<img src="\.\./images/console/(.+)-light\.webp" alt="[^"]+" width="\d+%"></picture>'
)
NAMES = [
    f"{picture.name}-{form}-{scheme}.webp" for picture in PICTURES for form in FORMS for scheme in SCHEMES
]


@pytest.fixture(scope="module")
def office(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients have to log in."""
    if not request.config.getoption("--screenshots"):
        pytest.skip("pictures are taken with --screenshots")
    directory = tmp_path_factory.mktemp("office")
    users = directory / "users"
    users.write_text(":".join(ADMIN))
    users.chmod(0o600)
    broker = Broker(directory / "data", config=f"{SECURITY}users_file = '{users}'\n")
    try:
        open_office(f"http://{broker.start().http_address}")
        yield broker
    finally:
        broker.end()


@pytest.fixture(scope="module")
def shop(office: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with some minutes of business behind it."""
    broker = Broker(tmp_path_factory.mktemp("shop") / "data")
    try:
        shop = Shop(f"http://{broker.start().http_address}")
        shop.open()
        shop.journey()
        with shop.busy():
            time.sleep(BUSY_S)
            yield broker
    finally:
        broker.end()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.name)
def test_a_picture_is_taken(
    browser: Browser, office: Broker, shop: Broker, picture: Picture, form: str, scheme: str
) -> None:
    width, height, scale = FORMS[form]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]
        device_scale_factor=scale,
        reduced_motion="reduce",
    )
    url = f"http://{(office if picture.is_locked else shop).http_address}"
    if picture.is_locked and picture.is_logged_in:
        name, password = ADMIN
        answer = context.request.post(f"{url}/session", data={"user": name, "password": password})
        assert answer.ok, answer.text()
    tab = Tab(context.new_page(), url)
    with tab.expecting("Failed to load resource: the server responded with a status of 40[14]"):
        tab.open(picture.place)
        tab.settle()
        if picture.act is not None:
            picture.act(tab)
            tab.settle()
    expect(tab.page.locator("#pulse")).to_have_class(re.compile("up"))
    expect(tab.page.locator("#toasts .toast")).to_have_count(0)
    # Playwright itself takes no WebP, which needs a third of the bytes.
    taken = context.new_cdp_session(tab.page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
    )
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{picture.name}-{form}-{scheme}.webp").write_bytes(base64.b64decode(taken["data"]))
    context.close()
    assert tab.errors == []


def test_pictures_are_there_and_small() -> None:
    sizes = {path.name: path.stat().st_size for path in IMAGES.iterdir()}
    assert sorted(sizes) == sorted(NAMES)
    assert max(sizes.values()) < MAX_BYTES
    assert sum(sizes.values()) < MAX_BYTES_OF_ALL


def test_pictures_are_shown_in_the_colours_of_the_reader() -> None:
    shown = SHOWN.findall(PAGE.read_text())
    assert all(dark == light for dark, light in shown)
    pairs = [f"{picture.name}-{form}" for picture in PICTURES for form in FORMS]
    assert sorted(light for _, light in shown) == sorted(pairs)
