"""One tab of a real browser on the console, and whatever it complained of."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from playwright.sync_api import ConsoleMessage, Locator, Page, expect

FLAGS = (
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Slow machines are no failure.
PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


class Tab:
    """A page of the console. Unexpected errors, including those of its security policy, are recorded."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.errors: list[str] = []
        self._expected: re.Pattern[str] | None = None
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (
            self._expected is not None and self._expected.search(message.text)
        ):
            self.errors.append(f"{message.text} at {message.location}")

    @contextmanager
    def expecting(self, error: str) -> Iterator[None]:
        """Take errors that match for what they are."""
        self._expected = re.compile(error)
        try:
            yield
        finally:
            self._expected = None

    def open(self, place: str = "/", *names: str) -> None:
        """Go to a page by what stands behind #; names in it are escaped."""
        path = place.format(*(quote(name, safe="") for name in names))
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/console/#{path}")
        expect(self.heading).to_be_visible()

    @property
    def heading(self) -> Locator:
        return self.page.locator("h1")

    def link(self, name: str) -> Locator:
        return self.page.locator("main").get_by_role("link", name=name, exact=True)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def row(self, text: str) -> Locator:
        """The row of a table that has this in it."""
        return self.page.locator("main tbody tr").filter(has_text=text)

    def cells(self, text: str) -> list[str]:
        """What that row says, cell by cell."""
        return [each.strip() for each in self.row(text).first.locator("td").all_inner_texts()]

    def figure(self, label: str) -> Locator:
        """The number under a label."""
        return self.page.locator(".stat").filter(has_text=re.compile(f"^{label}")).locator(".figure").first

    def settle(self) -> None:
        """Wait until the page has loaded and drawn its data."""
        expect(self.page.locator("main [aria-busy]")).to_have_count(0)

    @property
    def overhang(self) -> int:
        """How many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))
