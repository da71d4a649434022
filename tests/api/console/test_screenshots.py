"""The pictures of the console in the documentation; taken anew with --screenshots, else only looked at."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.brokers import Broker

from .browsing import Tab
from .shop import TRACE, Shop

IMAGES = Path(__file__).parents[3] / "docs" / "images"
PAGE = IMAGES.parent / "guide" / "console.md"
MAX_BYTES = 200_000
# So much of a history that charts are worth looking at.
BUSY_S = 200
DESKTOP, TALL, PHONE = (1200, 760), (1100, 1120), (360, 740)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A page as it is shown in the documentation."""

    name: str
    place: str
    scheme: str = "light"
    size: tuple[int, int] = DESKTOP
    scale: float = 1.5
    # What is clicked before, by its text.
    click: str = ""
    # The button that is pressed before.
    press: str = ""
    # What has to appear before, by its selector.
    wait_for: str = ""


PICTURES = (
    Picture(name="overview", place="/"),
    Picture(name="overview-dark", place="/", scheme="dark"),
    Picture(name="topic", place="/topics/orders"),
    Picture(
        name="messages", place="/messages/orders?partition=0&by=offset&at=12&open=0/12", click="customer"
    ),
    Picture(name="queue-dark", place="/queues/warehouse/orders", scheme="dark"),
    Picture(name="dead-letters", place="/dead-letters/orders.dlq", size=(1200, 480)),
    Picture(name="group", place="/groups/analytics"),
    Picture(name="delayed", place="/delayed?topic=emails"),
    Picture(name="trace", place=f"/traces/{TRACE}", size=TALL, scale=1),
    Picture(name="trace-dark", place=f"/traces/{TRACE}", scheme="dark", size=TALL, scale=1),
    Picture(name="produce", place="/produce?topic=orders"),
    Picture(name="pipelines-dark", place="/pipelines", scheme="dark"),
    Picture(name="schema", place="/schemas/shipments-value?version=3&against=1"),
    Picture(
        name="decoded",
        place="/messages/shipments?partition=0&by=offset&at=0&open=0/2",
        click="parcels",
        size=(1200, 680),
    ),
    Picture(name="topic-edit", place="/topics/orders/edit", size=(1200, 600)),
    Picture(
        name="filter-dark",
        place="/messages/orders?by=filter&at=value.customer.id%20%3E%3D%205%20and%20key%20contains%20%22customer%22",
        scheme="dark",
        size=(1200, 480),
    ),
    Picture(
        name="live-dark",
        place="/messages/orders?by=live&at=value.customer.id%20%3E%3D%205",
        scheme="dark",
        size=PHONE,
        wait_for="details",
    ),
    Picture(name="group-reset", place="/groups/analytics/reset", press="Preview", size=PHONE),
    Picture(name="phone", place="/", size=PHONE),
    Picture(name="phone-messages", place="/messages/orders?partition=0", size=PHONE, scheme="dark"),
)


@pytest.fixture(scope="module")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with some minutes of business behind it."""
    if not request.config.getoption("--screenshots"):
        pytest.skip("pictures are taken with --screenshots")
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
@pytest.mark.parametrize("picture", PICTURES, ids=lambda each: each.name)
def test_a_picture_is_taken(browser: Browser, shop: Broker, picture: Picture) -> None:
    width, height = picture.size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,  # type: ignore[arg-type]
        device_scale_factor=picture.scale,
        reduced_motion="reduce",
    )
    tab = Tab(context.new_page(), f"http://{shop.http_address}")
    tab.open(picture.place)
    tab.settle()
    if picture.wait_for:
        expect(tab.page.locator(picture.wait_for).nth(4)).to_be_visible(timeout=30_000)
    if picture.press:
        tab.button(picture.press).click()
        tab.settle()
    if picture.click:
        tab.page.locator(".json").get_by_text(picture.click).first.click()
    expect(tab.page.locator("#pulse")).to_have_class(re.compile("up"))
    IMAGES.mkdir(exist_ok=True)
    tab.page.screenshot(path=IMAGES / f"console-{picture.name}.png", animations="disabled", caret="hide")
    context.close()
    assert tab.errors == []


def test_pictures_are_there_small_and_shown() -> None:
    files = {path.name for path in IMAGES.glob("console-*.png")}
    assert files == {f"console-{picture.name}.png" for picture in PICTURES}
    assert all((IMAGES / name).stat().st_size < MAX_BYTES for name in files)
    shown = set(re.findall(r"\.\./images/(console-[a-z-]+\.png)", PAGE.read_text()))
    assert shown == files
