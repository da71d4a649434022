"""Users, access rules, quotas, API keys and tenants are managed in the browser."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.brokers import Broker

from .browsing import Tab
from .conftest import DESKTOP

PHONE = {"width": 390, "height": 844}
ADMIN, OTHER = ("admin", "of-admin"), ("other", "of-other")
FIRST, SECOND = "first secret", "second secret"
# Browsers report every refused request.
REFUSED = "Failed to load resource: the server responded with a status of 4"
LISTS = ("/users", "/access-rules", "/quotas", "/api-keys", "/tenants")


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("access")
    users = directory / "users"
    users.write_text("".join(f"{user}:{password}\n" for user, password in (ADMIN, OTHER)))
    users.chmod(0o600)
    settings = (
        "authentication = true",
        "acls = true",
        "super_users = ['User:admin']",
        f"users_file = '{users}'",
    )
    broker = Broker(directory / "data", config="\n".join(("[security]", *settings)))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def api(locked: Broker) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{locked.http_address}", auth=ADMIN, timeout=60) as client:
        yield client


@pytest.fixture(params=[DESKTOP, PHONE], ids=["desktop", "phone"])
def size(request: pytest.FixtureRequest) -> dict[str, int]:
    chosen: dict[str, int] = request.param
    return chosen


def log_in(tab: Tab, user: str, password: str) -> None:
    tab.page.get_by_label("User", exact=True).fill(user)
    tab.page.get_by_label("Password", exact=True).fill(password)
    tab.page.locator("form.log-in button.primary").click()
    expect(tab.page.locator("form.log-in")).to_have_count(0)


@pytest.fixture
def admin(browser: Browser, locked: Broker) -> Iterator[Tab]:
    """A tab of the administrator, on the page of users."""
    context = browser.new_context(viewport=DESKTOP)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{locked.http_address}")
    with tab.expecting(REFUSED):
        tab.open("/users")
        log_in(tab, *ADMIN)
        yield tab
    context.close()
    assert tab.errors == []


def confirm(tab: Tab, verb: str, typed: str | None = None) -> None:
    dialog = tab.page.get_by_role("dialog")
    act = dialog.get_by_role("button", name=verb, exact=True)
    if typed is not None:
        expect(act).to_be_disabled()
        dialog.get_by_label(f"Type {typed} to confirm").fill(typed)
    act.click()
    expect(dialog).to_have_count(0)


def fill(tab: Tab, **values: str) -> None:
    for label, value in values.items():
        tab.page.locator("main").get_by_label(label.replace("_", " "), exact=True).fill(value)


def may_log_in(broker: Broker, user: str, password: str) -> bool:
    answer = httpx.get(f"http://{broker.http_address}/topics", auth=(user, password), timeout=60)
    return answer.status_code != 401


def test_a_user_is_created_gets_another_password_and_is_deleted(admin: Tab, locked: Broker) -> None:
    admin.link("New user").click()
    expect(admin.heading).to_have_text("New user")
    fill(admin, Name="maria", Again="another one", New_password=FIRST)
    admin.button("Create").click()
    expect(admin.page.locator(".refused")).to_have_text("the passwords differ")
    fill(admin, Again=FIRST)
    admin.button("Create").click()
    expect(admin.heading).to_have_text("maria")
    assert may_log_in(locked, "maria", FIRST)
    fill(admin, New_password=SECOND, Again=SECOND)
    admin.button("Change password").click()
    expect(admin.page.locator("#toasts")).to_contain_text("The password of maria is changed")
    expect(admin.page.get_by_label("New password", exact=True)).to_have_value("")
    assert may_log_in(locked, "maria", SECOND)
    assert not may_log_in(locked, "maria", FIRST)
    admin.button("Delete user").click()
    confirm(admin, "Delete", typed="maria")
    expect(admin.heading).to_have_text("Users")
    expect(admin.row("maria")).to_have_count(0)
    assert not may_log_in(locked, "maria", SECOND)


def test_a_user_that_exists_is_refused_by_name_and_the_form_is_kept(admin: Tab, api: httpx.Client) -> None:
    api.post("/users", json={"name": "twice", "password": FIRST}).raise_for_status()
    admin.open("/new-user")
    fill(admin, Name="twice", New_password=FIRST, Again=FIRST)
    admin.button("Create").click()
    expect(admin.page.locator(".refused")).to_contain_text("twice")
    expect(admin.page.get_by_label("Name", exact=True)).to_have_value("twice")


def test_a_rule_is_in_force_once_created_until_it_is_deleted(
    admin: Tab, api: httpx.Client, locked: Broker
) -> None:
    api.post("/topics", json={"name": "ruled-orders"}).raise_for_status()
    topic = f"http://{locked.http_address}/topics/ruled-orders"
    assert httpx.get(topic, auth=OTHER, timeout=60).status_code in (403, 404)
    admin.open("/new-rule")
    admin.page.get_by_label("Operation", exact=True).select_option("describe")
    admin.page.get_by_label("Matches", exact=True).select_option("prefixed")
    fill(admin, Principal="User:other", Name="ruled-")
    admin.button("Create").click()
    expect(admin.heading).to_have_text("Access rules")
    assert admin.cells("ruled-")[:4] == ["allow", "User:other", "describe", "topic ruled- prefix"]
    assert httpx.get(topic, auth=OTHER, timeout=60).status_code == 200
    delete = admin.page.get_by_role(
        "button", name=re.compile("^Delete: Allow User:other describe on each topic")
    )
    delete.click()
    admin.button("Keep").click()
    expect(delete).to_be_focused()
    delete.click()
    confirm(admin, "Delete")
    expect(admin.row("ruled-")).to_have_count(0)
    assert httpx.get(topic, auth=OTHER, timeout=60).status_code in (403, 404)


def test_operations_fit_the_resource_and_a_bad_principal_is_named(admin: Tab) -> None:
    admin.open("/new-rule")
    admin.page.get_by_label("Resource", exact=True).select_option("cluster")
    expect(admin.page.get_by_label("Name", exact=True)).to_be_hidden()
    options = admin.page.get_by_label("Operation", exact=True).locator("option").all_inner_texts()
    assert "cluster-action" in options
    assert "read" not in options
    fill(admin, Principal="maria")
    admin.button("Create").click()
    expect(admin.page.locator(".refused")).to_contain_text("principal")


def test_a_quota_is_set_changed_and_removed(admin: Tab, api: httpx.Client) -> None:
    admin.open("/quotas")
    admin.link("New quota").click()
    admin.button("Set").click()  # the browser asks for a name first
    expect(admin.heading).to_have_text("New quota")
    fill(admin, Name_of_the_user="limited")
    admin.button("Set").click()
    expect(admin.page.locator(".refused")).to_have_text("give at least one limit")
    fill(admin, Produce="1048576", Open_connections="5")
    admin.button("Set").click()
    expect(admin.heading).to_have_text("Quota of user limited")
    found = api.get("/quotas", params={"user": "limited"}).json()["quotas"]
    assert found[0]["values"] == {"producer_byte_rate": 1048576, "connection_count": 5}
    fill(admin, Open_connections="")
    admin.button("Save").click()
    expect(admin.page.locator("#toasts")).to_contain_text("is changed")
    found = api.get("/quotas", params={"user": "limited"}).json()["quotas"]
    assert found[0]["values"] == {"producer_byte_rate": 1048576}
    admin.open("/quotas")
    admin.settle()
    assert admin.cells("limited") == ["user limited", "Produce 1 MiB/s"]
    admin.link("user limited").click()
    admin.button("Remove all its limits").click()
    confirm(admin, "Remove")
    expect(admin.heading).to_have_text("Quotas")
    assert api.get("/quotas", params={"user": "limited"}).json()["quotas"] == []


def test_the_secret_of_a_key_is_shown_once_and_can_be_copied(
    admin: Tab, api: httpx.Client, locked: Broker
) -> None:
    admin.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=admin.url)
    admin.open("/new-api-key")
    fill(admin, Owner="other", Description="nightly export", Expires_after_days="30")
    admin.page.get_by_label("describe", exact=True).check()
    admin.button("Create").click()
    card = admin.page.locator(".secret")
    expect(card.get_by_role("heading")).to_be_focused()
    expect(card).to_contain_text("not shown again")
    secret = card.locator("code").first.inner_text()
    admin.button("Copy the key").click()
    expect(admin.page.locator("#toasts")).to_contain_text("Copied")
    assert admin.page.evaluate("navigator.clipboard.readText()") == secret
    answer = httpx.get(
        f"http://{locked.http_address}/topics", headers={"Authorization": f"Bearer {secret}"}, timeout=60
    )
    assert answer.status_code == 200
    admin.link("All keys").click()
    expect(admin.row("nightly export")).to_be_visible()
    assert secret not in admin.page.content()
    (known,) = (each for each in api.get("/keys").json()["keys"] if each["description"] == "nightly export")
    assert known["scopes"] == ["describe"]
    admin.page.go_back()
    expect(admin.heading).to_have_text("New key")
    assert secret not in admin.page.content()


def test_a_key_is_replaced_by_one_whose_secret_is_shown_and_deleted(admin: Tab, api: httpx.Client) -> None:
    old = api.post("/keys", json={"owner": "other", "description": "weekly"}).raise_for_status().json()
    admin.open("/api-keys")
    admin.button("Replace weekly").click()
    confirm(admin, "Replace")
    expect(admin.page.locator(".secret code").first).to_contain_text("amq_")
    expect(admin.page.locator(".secret h2")).to_be_focused()
    assert old["key"] not in admin.page.content()
    expect(admin.row("weekly")).to_have_count(2)
    admin.row(old["id"]).get_by_role("button", name="Delete weekly").click()
    confirm(admin, "Delete")
    expect(admin.row("weekly")).to_have_count(1)
    assert old["id"] not in {each["id"] for each in api.get("/keys").json()["keys"]}


def test_a_tenant_is_created_limited_suspended_and_deleted(
    admin: Tab, api: httpx.Client, locked: Broker
) -> None:
    admin.open("/new-tenant")
    fill(admin, Id="acme", Description="Acme Ltd.")
    admin.button("Create").click()
    expect(admin.heading).to_have_text("acme")
    fill(admin, Topics="5")
    admin.button("Save").click()
    expect(admin.figure("Topics").locator("xpath=..")).to_contain_text("of 5")
    fill(admin, Principal="User:employee")
    admin.page.get_by_label("may do everything inside the tenant").check()
    admin.button("Add").click()
    expect(admin.row("User:employee")).to_be_visible()
    fill(admin, Reason="invoice 17")
    admin.button("Suspend").click()
    dialog = admin.page.get_by_role("dialog")
    expect(dialog).to_contain_text("All requests of its clients are refused")
    admin.button("Keep").click()
    expect(admin.button("Suspend")).to_be_focused()
    assert api.get("/admin/tenants/acme").json()["status"] == "active"
    admin.button("Suspend").click()
    confirm(admin, "Suspend")
    expect(admin.figure("Status")).to_have_text("suspended")
    assert api.get("/admin/tenants/acme").json()["reason"] == "invoice 17"
    admin.button("Activate").click()
    expect(admin.figure("Status")).to_have_text("active")
    api.post("/users", json={"name": "employee", "password": FIRST}).raise_for_status()
    topics = f"http://{locked.http_address}/topics"
    member = ("employee", FIRST)
    httpx.post(topics, json={"name": "plans"}, auth=member, timeout=60).raise_for_status()
    admin.button("Delete tenant").click()
    confirm(admin, "Delete", typed="acme")
    expect(admin.page.locator("#toasts .bad")).to_contain_text("topics")
    httpx.delete(f"{topics}/plans", auth=member, timeout=60).raise_for_status()
    admin.button("Delete tenant").click()
    confirm(admin, "Delete", typed="acme")
    expect(admin.heading).to_have_text("Tenants")
    assert api.get("/admin/tenants/acme").status_code == 404


def test_a_user_without_rights_sees_which_are_missing_and_who_it_is(
    browser: Browser, locked: Broker, size: dict[str, int]
) -> None:
    context = browser.new_context(viewport=size)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{locked.http_address}")
    with tab.expecting(REFUSED):
        tab.open("/users")
        log_in(tab, *OTHER)
        for place in ("/users", "/access-rules", "/quotas", "/tenants"):
            tab.open(place)
            expect(tab.page.locator(".refused")).to_contain_text(
                re.compile("DESCRIBE.* is not allowed on the cluster. You are logged in as other.")
            )
            expect(tab.page.locator("main .button.primary")).to_be_hidden()
        tab.open("/api-keys")
        expect(tab.link("New key")).to_be_visible()  # for itself
    context.close()
    assert tab.errors == []


def test_pages_fit_their_window(
    browser: Browser, locked: Broker, api: httpx.Client, size: dict[str, int]
) -> None:
    name = "a-service-with-a-rather-long-name@warehouse.eu-central-1.example.com"
    api.post("/users", json={"name": name, "password": "long enough"})
    rule = {
        "resource": "group",
        "name": f"groups-of-{name}",
        "pattern": "prefixed",
        "operation": "describe-configs",
    }
    api.post("/acls", json={"principal": f"User:{name}", "host": "10.11.12.13", "permission": "deny"} | rule)
    api.post(
        "/keys", json={"owner": name, "description": f"the key of {name}", "scopes": ["describe-configs"]}
    )
    api.patch("/quotas", json={"user": name, "client_id": name, "values": {"producer_byte_rate": 1048576}})
    api.post("/admin/tenants", json={"id": "a-tenant-with-the-longest-of-ids"}).raise_for_status()
    context = browser.new_context(viewport=size)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{locked.http_address}")
    with tab.expecting(REFUSED):
        tab.open("/users")
        log_in(tab, *ADMIN)
        forms = ("/new-user", "/new-rule", "/quotas/edit", "/new-api-key", "/new-tenant")
        ones = (f"/users/{name}", "/tenants/a-tenant-with-the-longest-of-ids")
        for place in (*LISTS, *forms, *ones):
            tab.open(place)
            tab.settle()
            assert tab.overhang <= 0, place
            for button in tab.page.locator("main").get_by_role("button").all():
                box = button.bounding_box()
                assert box is None or box["x"] + box["width"] <= size["width"], (place, button.inner_text())
            unnamed = tab.page.evaluate(
                "[...document.querySelectorAll('main input, main select')]"
                ".filter(each => !each.labels?.length && !each.ariaLabel && !each.hidden).length"
            )
            assert unnamed == 0, place
    api.delete("/admin/tenants/a-tenant-with-the-longest-of-ids")
    context.close()
    assert tab.errors == []


def test_the_menu_of_a_phone_says_who_is_logged_in_and_logs_out(browser: Browser, locked: Broker) -> None:
    context = browser.new_context(viewport=PHONE)  # type: ignore[arg-type]
    tab = Tab(context.new_page(), f"http://{locked.http_address}")
    with tab.expecting(REFUSED):
        tab.open("/users")
        log_in(tab, *ADMIN)
        search = tab.page.locator("#search-text").bounding_box()
        assert search is not None
        assert search["width"] > PHONE["width"] / 3
        tab.button("Menu").click()
        expect(tab.page.locator("#nav .who")).to_have_text("admin")
        tab.button("Log out").click()
        expect(tab.heading).to_have_text("Log in")
    context.close()
    assert tab.errors == []


def test_a_broker_without_security_says_so(tab: Tab) -> None:
    for place, setting in (
        ("/users", "security.authentication"),
        ("/access-rules", "security.acls"),
        ("/api-keys", "no key"),
    ):
        with tab.expecting(REFUSED):
            tab.open(place)
            expect(tab.page.get_by_role("note")).to_contain_text(" off: ")
            expect(tab.page.get_by_role("note")).to_contain_text(setting)
            tab.settle()
    expect(tab.page.locator("#session")).to_be_hidden()
    expect(tab.page.locator("#who")).to_be_hidden()
