"""Logins of the console in a cluster: one login for all nodes, and one logout."""

from pathlib import Path

import pytest

from alpacamq.api.rest.app import RestApi
from alpacamq.broker.access import SecuritySettings
from alpacamq.cluster.commands import UserEdit
from alpacamq.security.scram import MIN_ITERATIONS, Mechanism
from tests.api.rest.test_sessions import BOB, Browser

from .three_brokers import ThreeBrokers, three_brokers

SECURED = SecuritySettings(authentication=True)


async def a_user(cluster: ThreeBrokers, password: str = BOB["password"]) -> None:
    await cluster[1].access.set_password("bob", password, (Mechanism.SHA_256,), MIN_ITERATIONS)
    known = cluster[1].access.user("bob")
    await cluster.until(
        lambda: all(each.access.user("bob") == known for each in cluster.brokers.values()), "the user"
    )


async def logged_in(cluster: ThreeBrokers) -> dict[int, Browser]:
    """Log in at node 1; return the same browser at each node."""
    browsers = {number: Browser(RestApi(broker, {})) for number, broker in cluster.brokers.items()}
    await browsers[1].log_in()
    for browser in browsers.values():
        browser.cookie, browser.token = browsers[1].cookie, browsers[1].token
    for number, browser in browsers.items():
        await answered(cluster, number, browser, 200)
    return browsers


async def answered(cluster: ThreeBrokers, number: int, browser: Browser, status: int) -> None:
    """Return once a node answers the browser with this status: it may be behind for a short time."""
    applied = cluster[1].metadata.applied_index
    await cluster[number].metadata.wait_until_applied(applied)
    assert await browser.status() == status, number


async def test_a_login_holds_on_every_node_and_after_a_restart(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, security=SECURED) as cluster:
        await a_user(cluster)
        browsers = await logged_in(cluster)
        assert await browsers[3].status("POST", "/topics", {"name": "made"}) == 201
        await cluster.kill(2)
        await cluster.start(2)
        again = Browser(RestApi(cluster[2], {}))
        again.cookie = browsers[1].cookie
        await answered(cluster, 2, again, 200)


async def test_after_a_logout_no_node_accepts_a_copy_of_the_cookie(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, security=SECURED) as cluster:
        await a_user(cluster)
        browsers = await logged_in(cluster)
        other = Browser(RestApi(cluster[3], {}))
        await other.log_in()
        thief = {number: browser.cookie for number, browser in browsers.items()}
        assert await browsers[2].status("DELETE", "/session") == 204
        await cluster.until(
            lambda: all(each.metadata.image.ended_sessions for each in cluster.brokers.values()), "the logout"
        )
        for number, browser in browsers.items():
            browser.cookie = thief[number]
            assert await browser.status() == 401, number
        assert await other.status() == 200  # another session of the same user


@pytest.mark.parametrize("change", ["password", "deletion"])
async def test_a_changed_or_deleted_user_loses_its_sessions_everywhere(tmp_path: Path, change: str) -> None:
    async with three_brokers(tmp_path, security=SECURED) as cluster:
        await a_user(cluster)
        browsers = await logged_in(cluster)
        before = cluster[1].access.user("bob")
        if change == "password":
            await a_user(cluster, "other")
        else:
            await cluster[2].access.alter_users([UserEdit("bob", None, None)])
        await cluster.until(
            lambda: all(each.access.user("bob") != before for each in cluster.brokers.values()), "the change"
        )
        for browser in browsers.values():
            assert await browser.status() == 401
