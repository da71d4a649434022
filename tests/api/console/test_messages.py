"""The message browser: by offset, timestamp and key, page by page; message contents stay text."""

import base64
import csv
import io
import json
import re
from datetime import datetime

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.brokers import Broker
from tests.cli.command import InProcess

from .browsing import Tab

HOSTILE = '<img src=x onerror="document.title=\'owned\'"><script>document.title="owned"</script>'


def publish(http: httpx.Client, topic: str, *messages: dict[str, object]) -> None:
    answer = http.post(f"/topics/{topic}/messages", json={"messages": messages}).raise_for_status().json()
    assert answer["errors"] == 0


def lines(tab: Tab) -> Locator:
    return tab.page.locator(".messages > li")


def places(tab: Tab) -> Locator:
    """p0 @17 and so on, as shown."""
    return tab.page.locator(".messages .place")


def numbered(count: int) -> list[dict[str, object]]:
    return [
        {"value": {"n": n}, "key": f"k{n % 3}", "partition": 0, "timestamp": 1_700_000_000_000 + 60_000 * n}
        for n in range(count)
    ]


def test_the_newest_messages_come_first_and_pages_lead_to_the_beginning(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    publish(http, made, *numbered(120))
    tab.open("/messages/{}?partition=0", made)
    expect(lines(tab)).to_have_count(50)
    expect(places(tab).first).to_have_text("p0 @119")
    expect(tab.page.locator(".pager")).to_contain_text("End of the topic.")
    tab.link("← Earlier").click()
    expect(places(tab).first).to_have_text("p0 @20")
    tab.page.keyboard.press("[")
    expect(tab.page.locator(".pager")).to_contain_text("Beginning of the topic.")
    expect(places(tab).first).to_have_text("p0 @0")
    tab.page.keyboard.press("]")
    expect(places(tab).first).to_have_text("p0 @50")
    tab.page.go_back()
    expect(places(tab).first).to_have_text("p0 @0")


def test_messages_are_found_by_offset_timestamp_and_key(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(http, made, *numbered(30), {"value": "other", "key": "k1", "partition": 1})
    tab.open("/messages/{}", made)
    controls = tab.page.locator("form.controls")
    controls.get_by_label("Partition").select_option("0")
    controls.get_by_label("Read").select_option("offset")
    controls.get_by_label("Offset").fill("25")
    controls.get_by_role("button", name="Read").click()
    expect(lines(tab)).to_have_count(5)
    expect(places(tab).first).to_have_text("p0 @25")

    controls.get_by_label("Read").select_option("time")
    controls.get_by_label("Timestamp").fill("2023-11-14T22:33:20")  # the twentieth minute
    controls.get_by_role("button", name="Read").click()
    expect(lines(tab)).to_have_count(10)
    expect(places(tab).first).to_have_text("p0 @20")

    controls.get_by_label("Partition").select_option("")
    controls.get_by_label("Read").select_option("key")
    controls.get_by_label("Key").fill("k1")
    controls.get_by_role("button", name="Read").click()
    expect(lines(tab)).to_have_count(11)
    assert set(places(tab).all_inner_texts()) == {f"p0 @{n}" for n in range(1, 30, 3)} | {"p1 @0"}


def test_json_unfolds_and_keeps_numbers_as_they_were_written(tab: Tab, http: httpx.Client, made: str) -> None:
    value = '{"id": 12345678901234567890, "deep": {"list": [1, {"name": "tea"}]}, "empty": {}}'
    publish(http, made, {"value": value, "headers": {"source": "web"}})
    tab.open("/messages/{}", made)
    lines(tab).locator("summary").first.click()
    tree = tab.page.locator(".json").first
    expect(tree).to_contain_text("12345678901234567890")
    expect(tree.get_by_text('"tea"')).to_have_count(0)
    tree.get_by_text("deep").click()
    tree.get_by_text("list").click()
    tree.get_by_text("1: {").click()
    expect(tree.get_by_text('"tea"')).to_be_visible()
    expect(tab.row("source")).to_contain_text("web")
    tab.button("Text").first.click()
    expect(tab.page.locator("pre.text").first).to_have_text(value)


def test_bytes_that_are_no_text_are_shown_as_bytes(tab: Tab, http: httpx.Client, made: str) -> None:
    binary = bytes(range(256)) * 8
    publish(http, made, {"value_base64": base64.b64encode(binary).decode(), "key_base64": "/wA="})
    tab.open("/messages/{}", made)
    lines(tab).locator("summary").first.click()
    dump = tab.page.locator("pre.hex").first
    expect(dump).to_contain_text("000040  40 41 42 43")
    expect(dump).to_contain_text("@ABCDEFG")
    dump.get_by_role("button", name="1,024 more bytes").click()
    expect(dump).to_contain_text("0007f0")
    expect(lines(tab).locator(".key")).to_have_text("ff 00")


@pytest.mark.parametrize("place", ["value", "json", "key", "header"])
def test_hostile_contents_are_text(tab: Tab, http: httpx.Client, made: str, place: str) -> None:
    messages: dict[str, dict[str, object]] = {
        "value": {"value": HOSTILE},
        "json": {"value": {HOSTILE: [HOSTILE], "__proto__": {"x": HOSTILE}, "constructor": HOSTILE}},
        "key": {"value": "v", "key": HOSTILE},
        "header": {"value": "v", "headers": {HOSTILE: HOSTILE, "alpacamq-dead-letter-reason": HOSTILE}},
    }
    publish(http, made, messages[place])
    tab.open("/messages/{}", made)
    lines(tab).locator("summary").first.click()
    expect(tab.page.locator(".unfolded")).to_contain_text("onerror=")
    assert tab.page.locator("main img, main script").count() == 0
    assert "owned" not in tab.page.title()


def test_headers_named_like_javascript_properties_are_shown(tab: Tab, http: httpx.Client, made: str) -> None:
    headers = {"constructor": "a", "toString": "b", "__proto__": "c"}
    publish(http, made, {"value": "x", "headers": headers})
    tab.open("/messages/{}", made)
    lines(tab).first.locator("summary").first.click()
    unfolded = tab.page.locator(".unfolded").first
    expect(unfolded.locator("tbody tr")).to_have_count(3)
    expect(unfolded).not_to_contain_text("native code")


def test_names_of_groups_are_text_too(tab: Tab, http: httpx.Client, made: str) -> None:
    group = f"{HOSTILE}/{made[-8:]}?#%"
    path = "/groups/" + "".join(f"%{byte:02X}" for byte in group.encode())
    body = {"offsets": [{"topic": made, "partition": 0, "offset": 0}]}
    http.post(f"{path}/offsets", json=body).raise_for_status()
    tab.open("/groups")
    tab.link(group).click()
    expect(tab.heading).to_have_text(group)
    expect(tab.page.get_by_role("region", name="Offsets")).to_contain_text(made)
    assert tab.page.locator("main img").count() == 0
    http.delete(path).raise_for_status()


def test_deep_and_long_messages_are_expanded_lazily(tab: Tab, http: httpx.Client, made: str) -> None:
    deep = "[" * 5000 + "]" * 5000
    long = "[" + ",".join(str(n) for n in range(50_000)) + "]"
    publish(http, made, {"value": deep, "partition": 0}, {"value": long, "partition": 1})
    tab.open("/messages/{}?partition=1", made)
    lines(tab).locator("summary").first.click()
    expect(tab.page.locator(".json").get_by_role("button", name="49900 more")).to_be_visible()
    tab.open("/messages/{}?partition=0", made)
    lines(tab).locator("summary").first.click()
    expect(tab.page.locator(".value").first).to_contain_text("10,000 bytes")


def test_a_message_can_be_linked_to(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(http, made, *numbered(5))
    tab.open("/messages/{}?partition=0&by=offset&at=3&open=0/3", made)
    expect(tab.page.locator(".messages details[open]").first.locator(".place")).to_have_text("p0 @3")
    expect(tab.page.locator(".unfolded .json").first).to_contain_text(re.compile(r"n: ?3"))


def test_new_messages_appear_on_top_as_they_arrive(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(http, made, {"value": "of before"})
    tab.open("/messages/{}", made)
    tab.page.get_by_label("Read", exact=True).select_option("live")
    tab.button("Read").click()
    waiting = tab.page.get_by_text("Waiting for new messages.")
    expect(waiting).to_be_visible()
    publish(http, made, *[{"value": f"new {n}", "partition": 0} for n in range(3)])
    excerpts = tab.page.locator(".messages .excerpt")
    expect(excerpts).to_have_text(["new 2", "new 1", "new 0"])
    tab.page.locator(".messages summary").first.click()
    tab.button("Pause").click()
    expect(tab.page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    publish(http, made, {"value": "while paused", "partition": 1})
    tab.button("Resume").click()
    expect(excerpts).to_have_text(["while paused", "new 2", "new 1", "new 0"])
    # What is expanded stays so.
    expect(tab.page.locator(".unfolded:visible")).to_contain_text("new 2")
    tab.button("Clear").click()
    expect(waiting).to_be_visible()
    expect(tab.page.get_by_role("status").filter(has_text="4 received")).to_be_visible()


def test_a_live_view_with_a_filter_shows_what_matches(tab: Tab, http: httpx.Client, made: str) -> None:
    tab.open("/messages/{}", made)
    tab.page.get_by_label("Read", exact=True).select_option("live")
    tab.page.get_by_label("Filter", exact=True).fill("value.total > 100")
    tab.button("Read").click()
    expect(tab.page.get_by_text("Waiting for new messages that match.")).to_be_visible()
    for total in (50, 150, 99, 101):
        http.post(f"/topics/{made}/messages", json={"value": json.dumps({"total": total})}).raise_for_status()
    lines = tab.page.locator(".messages .excerpt")
    expect(lines).to_have_text(['{"total": 101}', '{"total": 150}'])
    expect(tab.page.get_by_text("4 received, 2 match")).to_be_visible()


def test_a_live_view_says_what_is_wrong_with_a_filter(tab: Tab, made: str) -> None:
    with tab.expecting("status of 422"):
        tab.open("/messages/{}?by=live&at=value.total%20>>%201", made)
        expect(tab.page.locator("#main")).to_contain_text("filter: ")


def test_a_live_view_of_one_partition_leaves_out_what_is_too_much(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    tab.open("/messages/{}?by=live&partition=1", made)
    expect(tab.page.get_by_text("Waiting for new messages.")).to_be_visible()
    tab.button("Pause").click()
    expect(tab.page.get_by_role("status").filter(has_text="Paused")).to_be_visible()
    publish(http, made, {"value": "elsewhere", "partition": 0})
    numbers: list[dict[str, object]] = [{"value": n, "partition": 1} for n in range(3000)]
    for first in range(0, 3000, 1000):
        publish(http, made, *numbers[first : first + 1000])
    tab.button("Resume").click()
    expect(tab.page.locator(".messages .excerpt").first).to_have_text("2999")
    expect(tab.page.locator(".messages > li")).to_have_count(500)
    expect(tab.page.get_by_role("status").filter(has_text="received")).to_contain_text(
        "1,000 received, 2,000 left out"
    )


def saved(tab: Tab, form: str) -> bytes:
    """The file that a button saves."""
    with tab.page.expect_download() as download:
        tab.button(form).click()
    return download.value.path().read_bytes()


def test_messages_are_saved_as_json_lines_that_produce_reads(
    tab: Tab, http: httpx.Client, broker: Broker, made: str
) -> None:
    copy = f"{made}-copy"
    http.post("/topics", json={"name": copy, "partitions": 1}).raise_for_status()
    headers: list[object] = [["a", "b"], ["bytes", {"base64": "/w=="}]]
    publish(
        http,
        made,
        {"key": "k", "value": '{"n": 12345678901234567890}', "headers": headers, "partition": 0},
        {"key_base64": "/w==", "value_base64": "/g==", "partition": 0},
        {"value": None, "key": "deleted", "partition": 0},
    )
    numbers: list[dict[str, object]] = [{"value": n, "partition": 0} for n in range(600)]
    for _ in range(2):
        publish(http, made, *numbers)
    tab.open("/messages/{}?by=earliest", made)
    content = saved(tab, "JSON lines")
    ctl = InProcess(broker.address, broker.http_address)
    printed = ctl("consume", made, "--exit", "-o", "json", "--partition", "0")
    assert [json.loads(line) for line in content.splitlines()] == [
        json.loads(line) for line in printed.raw.splitlines()
    ]
    expect(tab.page.get_by_text("1,203 messages saved.")).to_be_visible()
    ctl.ok("produce", copy, "--json", stdin=content)
    assert http.get("/topics", params={"prefix": copy}).json()["topics"][0]["messages"] == 1203


def test_messages_of_a_key_are_saved_as_csv(tab: Tab, http: httpx.Client, made: str) -> None:
    values = ["plain", 'a "quoted", word\r\nand a line', "=1+1", "-5"]
    publish(http, made, *[{"key": "k", "value": value, "partition": 0} for value in values])
    publish(http, made, {"key": "other", "value": "other"})
    tab.open("/messages/{}?by=key&at=k", made)
    rows = list(csv.DictReader(io.StringIO(saved(tab, "CSV").decode(), newline="")))
    assert [row["value"] for row in rows] == [*values[:2], "'=1+1", "-5"]
    assert {row["key"] for row in rows} == {"k"}
    assert [row["offset"] for row in rows] == ["0", "1", "2", "3"]
    assert datetime.fromisoformat(rows[0]["time"]).timestamp() * 1000 == int(rows[0]["timestamp_ms"])


def test_messages_are_found_with_a_filter_and_saved(tab: Tab, http: httpx.Client, made: str) -> None:
    publish(
        http, made, *[{"value": {"n": n, "by": "x"}, "key": f"k{n % 2}", "partition": 0} for n in range(300)]
    )
    tab.open("/messages/{}", made)
    tab.page.get_by_label("Read", exact=True).select_option("filter")
    field = tab.page.get_by_label("Filter", exact=True)
    field.fill('value.n >= 100 and key == "k1"')
    tab.button("Read").click()
    expect(lines(tab)).to_have_count(50)
    expect(places(tab).first).to_have_text("p0 @101")
    tab.link("Continue →").click()
    expect(places(tab).first).to_have_text("p0 @201")
    tab.page.reload()
    expect(places(tab).first).to_have_text("p0 @201")
    expect(field).to_have_value('value.n >= 100 and key == "k1"')
    found = [json.loads(line) for line in saved(tab, "JSON lines").splitlines()]
    assert [record["offset"] for record in found] == list(range(201, 300, 2))
    with tab.expecting("422"):
        field.fill("value.n >= ")
        tab.button("Read").click()
        expect(tab.page.locator(".refused")).to_contain_text("filter: character 12: expected")
        tab.settle()


def test_a_json_tree_is_expanded_and_collapsed_as_a_whole(tab: Tab, http: httpx.Client, made: str) -> None:
    deep: list[object] = [{"a": {"b": {"c": {"d": {}, "e": n}}}} for n in range(100)]
    publish(http, made, {"value": {"a": {"b": {"c": {"d": "the innermost"}}}}, "partition": 0})
    publish(http, made, {"value": {"deep": [deep, deep]}, "partition": 1})
    tab.open("/messages/{}?by=earliest&partition=0", made)
    tab.page.locator(".messages summary").first.click()
    innermost = tab.page.get_by_text("the innermost")
    expect(innermost.locator("visible=true")).to_have_count(1)  # in the summary of the message
    tab.button("Expand all").click()
    expect(innermost.locator("visible=true")).to_have_count(2)
    tab.button("Collapse").click()
    expect(innermost.locator("visible=true")).to_have_count(1)
    tab.open("/messages/{}?by=earliest&partition=1", made)
    tab.page.locator(".messages summary").first.click()
    opened = tab.page.locator(".json details[open]")
    tab.button("Expand all").click()
    expect(opened).to_have_count(501)  # the root was open
    tab.button("Expand all").click()
    # The root, the list, its two lists, and four objects in each of 200.
    expect(opened).to_have_count(804)
