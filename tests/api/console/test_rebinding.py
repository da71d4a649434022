"""A page of another site whose name leads to the broker: DNS rebinding, in a real browser.

The name belongs to the page's author and resolves to the author's server first, which sends the page,
and to the broker from then on. For the browser both are one site.
"""

import json
import shutil
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route

from tests.brokers import Broker

from .browsing import FLAGS, PATIENCE_MS

NAME = "evil.test"


@pytest.fixture(scope="module")
def deceived(browser: Browser) -> Iterator[Browser]:
    """A browser for which the name leads to this machine."""
    program = shutil.which("chromium")
    assert program is not None
    flags = [
        *FLAGS,
        f"--host-resolver-rules=MAP {NAME} 127.0.0.1",
        # Newer browsers ask their user first, and not all have that.
        "--disable-features=LocalNetworkAccessChecks",
    ]
    other = browser.browser_type.launch(executable_path=program, args=flags)
    yield other
    other.close()


def page_of(deceived: Browser, address: str) -> Page:
    """The author's page, on the port that the broker listens on."""
    url = f"http://{NAME}:{address.rpartition(':')[2]}/"
    page = deceived.new_page()
    page.set_default_timeout(PATIENCE_MS)

    def send(route: Route) -> None:
        route.fulfill(content_type="text/html", body="<title>harmless</title>")

    page.route(url, send, times=1)
    page.goto(url)
    assert page.title() == "harmless"
    return page


def ask(page: Page, path: str, **options: object) -> tuple[int, str]:
    """What a script of the page gets to see."""
    script = f"""async () => {{
        const answer = await fetch({json.dumps(path)}, {json.dumps(options)});
        return [answer.status, await answer.text()];
    }}"""
    status, text = page.evaluate(script)
    return int(status), str(text)


def test_a_rebinding_page_can_neither_read_messages_nor_delete_a_topic(
    deceived: Browser, broker: Broker, http: httpx.Client, made: str
) -> None:
    http.post(f"/topics/{made}/messages", json={"value": "secret"}).raise_for_status()
    page = page_of(deceived, broker.http_address)

    answers = {
        path: ask(page, path, **options)
        for path, options in {
            f"/topics/{made}/messages": {},
            "/topics": {},
            "/console/": {},
            f"/topics/{made}": {"method": "DELETE"},
        }.items()
    }

    assert {path: status for path, (status, _) in answers.items()} == dict.fromkeys(answers, 421)
    assert not any("secret" in text for _, text in answers.values())
    assert all("http.hosts" in text for _, text in answers.values())
    assert http.get(f"/topics/{made}").status_code == 200


def test_a_rebinding_page_cannot_use_queues_over_sqs(deceived: Browser, broker: Broker, made: str) -> None:
    page = page_of(deceived, broker.sqs_address)

    status, text = ask(page, f"/?Action=ReceiveMessage&QueueUrl=/000000000000/{made}", method="POST")

    assert status == 421
    assert "sqs.hosts" in text


def test_a_name_that_is_configured_may_be_used(
    deceived: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = f'[http]\nhosts = ["{NAME}"]\n'
    broker = Broker(tmp_path_factory.mktemp("named") / "data", config=config)
    try:
        broker.start()
        page = page_of(deceived, broker.http_address)
        assert ask(page, "/topics")[0] == 200
    finally:
        broker.end()
