"""Clients that log in to the Kafka API."""

from collections.abc import Iterator
from time import monotonic

import pytest

from alpacamq.client.connect import parse_address
from alpacamq.client.errors import ErrorCode, Refused, Unreachable
from alpacamq.client.kafka.cluster import Cluster
from alpacamq.client.kafka.connection import MECHANISMS, Login
from alpacamq.client.kafka.topics import list_topics
from alpacamq.model.address import Address
from tests.brokers import Broker
from tests.waiting import eventually

LIFETIME_MS = 2000
USER, PASSWORD = "alice", "se:cret, größer"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose clients must authenticate, again and again."""
    directory = tmp_path_factory.mktemp("login")
    users = directory / "users"
    users.write_text(f"{USER}:{PASSWORD}\n")
    users.chmod(0o600)
    lines = [
        "[security]",
        "authentication = true",
        f"users_file = '{users}'",
        f"session_lifetime_ms = {LIFETIME_MS}",
    ]
    broker = Broker(directory / "data", config="\n".join(lines))
    try:
        yield broker.start()
    finally:
        broker.end()


@pytest.fixture
def address(broker: Broker) -> Address:
    return parse_address(broker.address)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_logs_in(address: Address, mechanism: str) -> None:
    with Cluster(address, login=Login(user=USER, password=PASSWORD, mechanism=mechanism)) as cluster:
        list_topics(cluster)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("login", [(USER, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_user_or_password_is_refused(
    address: Address, mechanism: str, login: tuple[str, str]
) -> None:
    user, password = login
    with (
        Cluster(address, login=Login(user=user, password=password, mechanism=mechanism)) as cluster,
        pytest.raises(Refused, match=f"as {user}.*wrong user name or password") as refused,
    ):
        list_topics(cluster)
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_an_unknown_mechanism_is_refused_with_those_there_are(address: Address) -> None:
    login = Login(user=USER, password=PASSWORD, mechanism="GSSAPI")
    with Cluster(address, login=login) as cluster, pytest.raises(Refused, match="not one of PLAIN, SCRAM"):
        list_topics(cluster)


def test_a_client_without_a_user_is_told_what_is_missing(address: Address) -> None:
    with Cluster(address) as cluster, pytest.raises(Unreachable, match="give a user and a password"):
        list_topics(cluster)


def test_a_client_logs_in_again_before_its_session_ends(broker: Broker, address: Address) -> None:
    with Cluster(address, login=Login(user=USER, password=PASSWORD)) as cluster:
        connection = cluster.any_broker()
        end = monotonic() + 2 * LIFETIME_MS / 1000

        def is_over() -> bool:
            list_topics(cluster)
            return monotonic() > end

        eventually(is_over, what="two sessions")
        assert cluster.any_broker() is connection
    assert broker.errors.find("after the end of the session") is None


def test_a_password_is_not_shown() -> None:
    assert PASSWORD not in repr(Login(user=USER, password=PASSWORD))
