"""Schemas in the console: subjects, differences of versions, checks, registration, decoded messages."""

import json
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Locator, expect

from alpacamq.registry.framing import framed

from .browsing import Tab

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
# 2**60, which JavaScript cannot represent next to 2**60 + 1.
LONG = bytes.fromhex("828080808080808020")


def record(*fields: str, kind: str = "int") -> str:
    """Return an Avro record; a field with `?` has a default."""
    described = [
        {"name": each.rstrip("?"), "type": kind, **({"default": 0} if each.endswith("?") else {})}
        for each in fields
    ]
    return json.dumps({"type": "record", "name": "Order", "fields": described})


def register(http: httpx.Client, subject: str, schema: str, kind: str = "AVRO") -> dict[str, Any]:
    path = f"/schemas/subjects/{quote(subject, safe='')}/versions"
    answer = http.post(path, json={"schema": schema, "schemaType": kind})
    assert answer.status_code == 200, answer.text
    registered: dict[str, Any] = answer.json()
    return registered


def publish(http: httpx.Client, topic: str, value: bytes) -> None:
    message = {"value_base64": b64encode(value).decode(), "partition": 0}
    http.post(f"/topics/{topic}/messages", json=message).raise_for_status()


def filled(tab: Tab, schema: str) -> Locator:
    """Wait until the form has the latest version, and replace its schema."""
    text = tab.page.get_by_label("Schema", exact=True)
    expect(text).not_to_have_value("")
    text.fill(schema)
    return tab.page.locator("form.produce")


def test_subjects_are_listed_with_what_applies_to_them(tab: Tab, http: httpx.Client, topic: str) -> None:
    register(http, f"{topic}-value", record("a"))
    register(http, f"{topic}-value", record("a", "b?"))
    register(http, f"{topic}-key", "{}", "JSON")
    http.put(f"/schemas/config/{topic}-key", json={"compatibility": "FULL"}).raise_for_status()
    http.put(f"/schemas/mode/{topic}-key", json={"mode": "READONLY"}).raise_for_status()
    tab.open("/schemas")
    tab.page.get_by_label("Filter subjects by name").fill(topic.upper())
    expect(tab.page.locator("main tbody tr")).to_have_count(2)
    subject, kind, versions, latest, _, compatibility, mode = tab.cells(f"{topic}-key")
    assert (subject, kind, versions, latest) == (f"{topic}-key", "JSON Schema", "1", "1")
    assert (compatibility, mode) == ("FULL", "READONLY")
    assert tab.cells(f"{topic}-value")[1:4] == ["Avro", "2", "2"]
    tab.page.get_by_label("Filter subjects by name").fill("no such subject")
    expect(tab.page.get_by_text("No subject matches.")).to_be_visible()


def test_many_subjects_are_shown_page_by_page(tab: Tab, http: httpx.Client, topic: str) -> None:
    for number in range(120):
        register(http, f"{topic}.{number:03}", '"int"')
    tab.open("/schemas?contains={}", topic)
    rows = tab.page.locator("main tbody tr")
    expect(rows).to_have_count(100)
    expect(tab.page.locator(".pager")).to_contain_text("1 to 100 of 120")
    tab.link("Next →").click()
    expect(rows).to_have_count(20)
    expect(rows.first).to_contain_text(f"{topic}.100")
    tab.link("← Previous").click()
    expect(rows.first).to_contain_text(f"{topic}.000")


def test_a_subject_shows_its_versions_and_what_has_changed(tab: Tab, http: httpx.Client, topic: str) -> None:
    subject = f"{topic}-value"
    long_ones = [f"field_with_a_long_name_{number}" for number in range(8)]
    register(http, subject, record(*long_ones))
    register(http, subject, record(*long_ones, "added?"))
    tab.open("/schemas/{}", subject)
    expect(tab.figure("Latest version")).to_have_text("2")
    expect(tab.figure("Compatibility")).to_have_text("BACKWARD")
    expect(tab.page.locator("pre.text")).to_contain_text('{"name": "added", "type": "int", "default": 0}')
    tab.link("Changes since version 1").click()
    expect(tab.page.locator(".change.added code")).to_have_text(
        '    {"name": "added", "type": "int", "default": 0}'
    )
    expect(tab.page.locator(".change.removed")).to_have_count(0)
    same = tab.page.locator(".change.same")
    near = same.count()
    tab.page.get_by_role("button", name="unchanged lines").click()
    expect(tab.page.get_by_role("button", name="unchanged lines")).to_have_count(0)
    assert same.count() > near
    tab.page.get_by_label("Show", exact=True).select_option("1")
    tab.page.get_by_label("Compare with").select_option("2")
    expect(tab.page.locator(".change.removed code")).to_have_count(1)
    expect(tab.page.locator("h2").first).to_contain_text("Version 2 → 1")


def test_a_subject_that_does_not_exist_says_so(tab: Tab) -> None:
    with tab.expecting("404"):
        tab.open("/schemas/missing")
        expect(tab.page.get_by_role("alert").last).to_contain_text("not found")


def test_a_schema_that_would_be_refused_shows_every_reason_with_its_place(
    tab: Tab, http: httpx.Client, topic: str
) -> None:
    subject = f"{topic}-value"
    register(http, subject, record("a", "b"))
    tab.open("/schema-check?subject={}", subject)
    fields = [{"name": "a", "type": "string"}, {"name": "b", "type": "int"}, {"name": "c", "type": "int"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    form = filled(tab, json.dumps(schema))
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("alert")).to_have_text(
        "The schema is not compatible (BACKWARD) and would be refused."
    )
    rows = [[cell.strip() for cell in row.locator("td").all_inner_texts()] for row in tab.row("").all()]
    assert [row[0] for row in rows] == ["/fields/0/type", "/fields/2"]
    assert "int" in rows[0][1]
    assert rows[1][2] == "READER_FIELD_MISSING_DEFAULT_VALUE"
    with tab.expecting("409"):
        form.get_by_role("button", name="Register").click()
        expect(form.get_by_role("alert")).to_contain_text("incompatible")
    assert http.get(f"/schemas/subjects/{subject}/versions").json() == [1]


def test_a_compatible_schema_is_checked_and_registered(tab: Tab, http: httpx.Client, topic: str) -> None:
    subject = f"{topic}-value"
    register(http, subject, record("a"))
    tab.open("/schemas/{}", subject)
    tab.link("New version").click()
    form = filled(tab, record("a", "b?"))
    with tab.expecting("404"):  # of the search for the schema among the versions
        form.get_by_role("button", name="Check").click()
        expect(form.locator(".done")).to_have_text(
            "The schema is compatible (BACKWARD) and would be accepted."
        )
    assert http.get(f"/schemas/subjects/{subject}/versions").json() == [1]
    form.get_by_role("button", name="Register").click()
    expect(form.locator(".done")).to_contain_text("Registered with id")
    assert http.get(f"/schemas/subjects/{subject}/versions").json() == [1, 2]
    form.get_by_role("button", name="Check").click()
    expect(form.locator(".done")).to_contain_text("The subject has this schema already: version 2.")
    form.get_by_role("link", name="version 2").click()
    expect(tab.heading).to_have_text(subject)
    expect(tab.page.locator("pre.text")).to_contain_text('"b"')


def test_a_new_subject_is_registered_with_a_reference(tab: Tab, http: httpx.Client, topic: str) -> None:
    register(http, f"{topic}-item", '{"type": "record", "name": "Item", "fields": []}')
    tab.open("/schema-check")
    form = tab.page.locator("form.produce")
    form.get_by_label("Subject", exact=True).fill(f"{topic}-value")
    form.get_by_label("Schema", exact=True).fill('{"type": "array", "items": "Item"}')
    form.get_by_role("button", name="+ Add a reference").click()
    form.get_by_label("name of the reference").fill("Item")
    form.get_by_label("subject of the reference").fill(f"{topic}-item")
    form.get_by_label("version of the reference").fill("1")
    form.get_by_role("button", name="Register").click()
    expect(form.locator(".done")).to_contain_text("Registered with id")
    form.get_by_role("link", name="See version 1").click()
    expect(tab.link(f"Item ({topic}-item, version 1)")).to_be_visible()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param('{"type": "record"', "line 1", id="not JSON"),
        pytest.param('{"type": "nothing"}', "nothing", id="unknown type"),
    ],
)
def test_an_invalid_schema_says_why_and_stays_in_the_form(
    tab: Tab, http: httpx.Client, topic: str, schema: str, reason: str
) -> None:
    subject = f"{topic}-value"
    register(http, subject, record("a"))
    tab.open("/schema-check?subject={}", subject)
    form = filled(tab, schema)
    with tab.expecting("422"):
        form.get_by_role("button", name="Check").click()
        expect(form.get_by_role("alert")).to_contain_text(reason)
    expect(form.get_by_label("Schema", exact=True)).to_have_value(schema)


def test_a_read_only_subject_is_named_as_the_reason(tab: Tab, http: httpx.Client, topic: str) -> None:
    subject = f"{topic}-value"
    register(http, subject, record("a"))
    http.put(f"/schemas/mode/{subject}", json={"mode": "READONLY"}).raise_for_status()
    tab.open("/schema-check?subject={}", subject)
    form = filled(tab, record("a", "b?"))
    with tab.expecting("404|422"):
        form.get_by_role("button", name="Check").click()
        expect(form.get_by_role("alert")).to_contain_text("the mode of the subject is READONLY")


def test_names_and_texts_stay_text(tab: Tab, http: httpx.Client, topic: str) -> None:
    subject = f"{topic}/{HOSTILE}"
    for description in (HOSTILE, HOSTILE * 2):
        register(http, subject, json.dumps({"type": "string", "description": description}), "JSON")
    tab.open("/schemas?contains={}", topic)
    tab.link(subject).click()
    expect(tab.heading).to_have_text(subject)
    expect(tab.page.locator("pre.text")).to_contain_text("<img src=x")
    tab.link("Changes since version 1").click()
    expect(tab.page.locator(".change").first).to_contain_text("<img src=x")
    tab.link("New version").click()
    form = filled(tab, '{"type": "integer"}')
    form.get_by_role("button", name="Check").click()
    expect(form.get_by_role("alert")).to_be_visible()
    assert tab.page.locator("main img").count() == 0
    assert "owned" not in tab.page.title().replace(HOSTILE, "")


def test_messages_are_shown_decoded_with_a_link_to_their_schema(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    registered = register(http, f"{made}-value", record("number", kind="long"))
    publish(http, made, framed(registered["id"], LONG))
    tab.open("/messages/{}?partition=0", made)
    line = tab.page.locator(".messages > li")
    expect(line.locator(".excerpt")).to_have_text('{"number":1152921504606846977}')
    line.locator("summary").first.click()
    expect(line.locator(".json .number")).to_have_text("1152921504606846977")
    expect(line.locator(".schema")).to_contain_text(f"AVRO, id {registered['id']}")
    line.get_by_role("button", name="Hex").click()
    expect(line.locator("pre.hex")).to_contain_text("82 80")
    line.get_by_role("link", name=f"{made}-value, version 1").click()
    expect(tab.heading).to_have_text(f"{made}-value")


def test_a_message_that_cannot_be_decoded_is_shown_as_it_is_with_the_reason(
    tab: Tab, http: httpx.Client, made: str
) -> None:
    registered = register(http, f"{made}-value", record("number"))
    publish(http, made, framed(registered["id"], b"\xff\xff"))
    publish(http, made, framed(1_999_999_999, b"\xff"))
    tab.open("/messages/{}?partition=0&by=earliest", made)
    messages = tab.page.locator(".messages > li")
    expect(messages).to_have_count(2)
    short, unknown = messages.all()
    expect(short.locator(".excerpt")).to_contain_text("ff ff")
    short.locator("summary").first.click()
    expect(short.locator(".schema")).to_contain_text(f"{made}-value, version 1")
    expect(short.locator(".schema .reason")).to_contain_text(
        "Not decoded: the data does not match the schema: number"
    )
    expect(short.locator("pre.hex")).to_contain_text("ff ff")
    unknown.locator("summary").first.click()
    expect(unknown.locator(".schema")).to_have_text("Not decoded: schema 1999999999 not found")


def test_decoded_contents_stay_text(tab: Tab, http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", "{}", "JSON")
    publish(http, made, framed(registered["id"], json.dumps({HOSTILE: HOSTILE}).encode()))
    tab.open("/messages/{}?partition=0&open=0/0", made)
    expect(tab.page.locator(".json")).to_contain_text("<img src=x")
    assert tab.page.locator("main img").count() == 0
    assert tab.page.title() != "owned"


def test_messages_of_a_queue_are_shown_decoded(tab: Tab, http: httpx.Client, made: str) -> None:
    registered = register(http, f"{made}-value", record("number"))
    poll: dict[str, str | int] = {"topic": made, "max": 1, "wait_ms": 0, "start": "earliest"}
    http.get("/groups/workers/poll", params=poll).raise_for_status()
    publish(http, made, framed(registered["id"], b"\x0e"))
    tab.open("/queues/workers/{}", made)
    tab.page.get_by_text("Peek at the next messages").click()
    expect(tab.page.locator(".messages .excerpt")).to_have_text('{"number":7}')
