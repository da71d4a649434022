"""Pages of other sites may not use the broker, whichever way they try; programs and the console may."""

import httpx
import pytest

from .problems import refused

PICTURE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
FRAME = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
SUBDOMAIN = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}


@pytest.mark.parametrize(
    "headers", [PICTURE, FRAME, SUBDOMAIN, {"Origin": "null"}, {"Origin": "http://a.example"}]
)
def test_a_page_of_another_site_gets_nothing(http: httpx.Client, made: str, headers: dict[str, str]) -> None:
    refused(http.get(f"/topics/{made}", headers=headers), 403, "cross-origin")
    form = headers | {"Content-Type": "application/x-www-form-urlencoded"}
    body = b'{"value": "smuggled"}'
    refused(http.post(f"/topics/{made}/messages", content=body, headers=form), 403, "cross-origin")
    assert http.get(f"/topics/{made}/messages").json()["messages"] == []


def test_a_link_may_be_followed_unless_that_changes_something(http: httpx.Client, made: str) -> None:
    http.get(f"/topics/{made}", headers=LINK).raise_for_status()
    poll = f"/groups/{made}/poll?topic={made}&wait_ms=0"
    refused(http.get(poll, headers=LINK), 403, "cross-origin")
    refused(http.get(poll, headers=PICTURE), 403, "cross-origin")
    http.get(poll, headers={"Sec-Fetch-Site": "same-origin"}).raise_for_status()
    http.get(poll, headers={"Sec-Fetch-Site": "none"}).raise_for_status()


def test_the_console_may_act_behind_a_proxy_that_has_another_name(http: httpx.Client, made: str) -> None:
    headers = {"Origin": "https://broker.example", "Sec-Fetch-Site": "same-origin"}
    http.post(f"/topics/{made}/messages", json={"value": "x"}, headers=headers).raise_for_status()
