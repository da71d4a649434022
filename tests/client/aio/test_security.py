"""TLS and each way to log in, against real brokers."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from alpacamq.client.aio.cluster import Cluster
from alpacamq.client.aio.connection import Connection
from alpacamq.client.aio.producer import Producer
from alpacamq.client.aio.reader import Reader
from alpacamq.client.connect import Tls, parse_address
from alpacamq.client.errors import ErrorCode, LoginRefused, NotAuthorized, Unreachable, Untrusted
from alpacamq.client.login import MECHANISMS, BearerToken, Credentials, Login, api_key
from tests import tokens
from tests.brokers import Broker
from tests.certificates import Authority, tls_section

USER, PASSWORD = "alice", "se:cret, größer"
WRONG = "wrong"
LIFETIME_MS = 2000


class Secured:
    """A broker with TLS whose clients must authenticate, again and again."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "certificates")
        self.other = Authority(directory / "others")
        users, keys = directory / "users", directory / "keys.json"
        users.write_text(f"{USER}:{PASSWORD}\n")
        users.chmod(0o600)
        keys.write_bytes(tokens.jwks())
        lines = [
            tls_section(self.authority, self.authority.server()),
            "[kafka]\ntls = true",
            "[security]",
            "authentication = true",
            "acls = true",
            f"super_users = ['User:{USER}']",
            f"users_file = '{users}'",
            f"session_lifetime_ms = {LIFETIME_MS}",
            f"jwks_file = '{keys}'",
            f"jwt_issuer = '{tokens.ISSUER}'",
            f"jwt_audience = '{tokens.AUDIENCE}'",
        ]
        self.broker = Broker(directory / "data", config="\n".join(lines))

    def client(self, credentials: Credentials | None, *, ca: Path | None = None, tls: bool = True) -> Cluster:
        return Cluster(
            [parse_address(self.broker.address)],
            tls=Tls(ca=str(ca or self.authority.ca)) if tls else None,
            credentials=credentials,
            request_s=10.0,
        )

    def new_key(self, **options: object) -> str:
        with httpx.Client(base_url=f"http://{self.broker.http_address}", auth=(USER, PASSWORD)) as http:
            answer = http.post("/keys", json={"description": "tests", **options})
            assert answer.status_code in (200, 201), answer.text
            return str(answer.json()["key"])

    def delete_key(self, key: str) -> None:
        with httpx.Client(base_url=f"http://{self.broker.http_address}", auth=(USER, PASSWORD)) as http:
            assert http.delete(f"/keys/{api_key(key).user}").is_success


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    secured = Secured(tmp_path_factory.mktemp("secured"))
    try:
        secured.broker.start()
        yield secured
    finally:
        secured.broker.end()


async def round_trip(cluster: Cluster, topic: str) -> None:
    async with Producer(cluster) as producer:
        await (await producer.put(topic, b"tea", partition=0))
    async with Reader(cluster, topic, until="now") as reader:
        assert [record.value async for record in reader] == [b"tea"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_password_opens_a_tls_listener(secured: Secured, mechanism: str, topic: str) -> None:
    async with secured.client(Login(user=USER, password=PASSWORD, mechanism=mechanism)) as cluster:
        await round_trip(cluster, topic)


async def test_a_bearer_token_logs_in(secured: Secured, topic: str) -> None:
    async with secured.client(BearerToken(token=tokens.token())) as cluster:
        await round_trip(cluster, topic)


async def test_a_bearer_token_can_come_from_a_function(secured: Secured, topic: str) -> None:
    calls = []

    async def new_token() -> str:
        calls.append(1)
        return tokens.token()

    async with secured.client(BearerToken(token=new_token)) as cluster:
        await round_trip(cluster, topic)
    assert calls


async def test_an_api_key_logs_in_until_it_is_deleted(secured: Secured, topic: str) -> None:
    key = secured.new_key()
    async with secured.client(api_key(key)) as cluster:
        await round_trip(cluster, topic)
        secured.delete_key(key)
        with pytest.raises((LoginRefused, Unreachable)):
            await cluster.topic_names()
        with pytest.raises(LoginRefused, match="unknown API key"):
            await cluster.retry(cluster.topic_names)


async def test_the_scopes_of_an_api_key_count(secured: Secured, topic: str) -> None:
    async with secured.client(Login(user=USER, password=PASSWORD)) as cluster:
        await round_trip(cluster, topic)
    async with secured.client(api_key(secured.new_key(scopes=["read"]))) as cluster:
        async with Reader(cluster, topic, until="now") as reader:
            assert [record.value async for record in reader] == [b"tea"]
        async with Producer(cluster) as producer:
            delivery = await producer.put(topic, b"coffee", partition=0)
            with pytest.raises(NotAuthorized):
                await delivery


async def test_a_key_that_is_none_is_refused_without_asking_the_broker() -> None:
    with pytest.raises(ValueError, match="is not an API key"):
        api_key("secret")


@pytest.mark.parametrize(
    "credentials",
    [
        *(Login(user=USER, password=WRONG, mechanism=mechanism) for mechanism in MECHANISMS),
        Login(user="a2a2", password=f"amq_a2a2_{WRONG}", mechanism="PLAIN"),
        BearerToken(token=WRONG),
    ],
    ids=lambda credentials: credentials.mechanism,
)
async def test_wrong_credentials_are_refused_at_once(secured: Secured, credentials: Credentials) -> None:
    async with secured.client(credentials) as cluster:
        with pytest.raises(LoginRefused) as refused:
            await cluster.topic("orders")
        assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not refused.value.retriable


async def test_a_mechanism_that_the_broker_does_not_have_is_refused(secured: Secured) -> None:
    async with secured.client(Login(user=USER, password=PASSWORD, mechanism="GSSAPI")) as cluster:
        with pytest.raises(LoginRefused, match="GSSAPI is not one of PLAIN"):
            await cluster.topic_names()


async def test_a_certificate_of_another_authority_is_not_trusted(secured: Secured) -> None:
    async with secured.client(None, ca=secured.other.ca) as cluster:
        with pytest.raises(Untrusted, match="is not accepted"):
            await cluster.topic("orders")


async def test_a_client_without_tls_is_told_what_may_be_wrong(secured: Secured) -> None:
    async with secured.client(None, tls=False) as cluster:
        with pytest.raises(Unreachable, match="TLS"):
            await cluster.topic_names()


async def test_a_session_is_renewed_without_an_error(secured: Secured, topic: str) -> None:
    """Write and read for longer than a session lasts."""
    async with (
        secured.client(Login(user=USER, password=PASSWORD)) as cluster,
        Producer(cluster) as producer,
    ):
        await producer.prepare(topic)
        async with Reader(cluster, topic) as reader:
            connections: set[Connection | None] = set()
            number = 0
            while len(connections) < 3:
                await (await producer.put(topic, b"%d" % number, partition=0))
                assert (await anext(reader)).value == b"%d" % number
                connections.add(cluster.open_connection(1, producer))
                connections.discard(None)
                number += 1
