"""Signature Version 4, against the signer that boto3 uses."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from alpacamq.api.http.messages import Request
from alpacamq.api.sqs.directory import SqsSettings
from alpacamq.api.sqs.errors import Fault
from alpacamq.api.sqs.signature import Signatures
from alpacamq.model.errors import AuthenticationFailed
from alpacamq.model.ids import TimestampMs
from alpacamq.security.api_keys import ApiKey
from alpacamq.security.callers import Caller
from alpacamq.security.principals import user

from .serving import ACCESS_KEY_ID, SECRET_ACCESS_KEY, SettableClock

if TYPE_CHECKING:
    from alpacamq.broker.access import Access

SETTINGS = SqsSettings(access_key_id=ACCESS_KEY_ID, secret_access_key=SECRET_ACCESS_KEY)
OTHER_SECRET = "another"  # noqa: S105 - it opens nothing either
BODY = b'{"QueueName": "q"}'


class StoppedClock(SettableClock):
    """Requests below are signed when the module is read, and checked whenever their test comes."""

    def __init__(self, ahead_s: float = 0) -> None:
        super().__init__()
        self._now_ms = super().now_ms()
        self.ahead_s = ahead_s

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms + int(self.ahead_s * 1000))


CLOCK = StoppedClock()


def signed(
    *,
    method: str = "POST",
    url: str = "http://localhost:9324/",
    body: bytes = BODY,
    secret: str = SECRET_ACCESS_KEY,
    key: str = ACCESS_KEY_ID,
    service: str = "sqs",
    region: str = "us-east-1",
    headers: dict[str, str] | None = None,
) -> Request:
    """A request as boto3 signs it and the listener hands it over."""
    said = {"X-Amz-Target": "AmazonSQS.CreateQueue", "Content-Type": "application/x-amz-json-1.0"}
    aws = AWSRequest(method=method, url=url, data=body, headers=said | (headers or {}))
    SigV4Auth(Credentials(key, secret), service, region).add_auth(aws)
    _, _, rest = url.partition("://")
    host, _, target = rest.partition("/")
    path, _, query = f"/{target}".partition("?")
    heard = {name.lower(): value for name, value in aws.headers.items()} | {"host": host}
    return Request(method, path, query, heard, body, "127.0.0.1:1")


def with_headers(request: Request, **changed: str) -> Request:
    headers = {**request.headers, **{name.replace("_", "-"): value for name, value in changed.items()}}
    return Request(request.method, request.path, request.query_string, headers, request.body, request.peer)


class Keys:
    """Access with the given API keys, which have all expired, or whose owners are refused."""

    def requires_login(self, _authentication: bool | None) -> bool:
        return False

    def __init__(self, *keys: ApiKey, refusal: str = "", expired: bool = False) -> None:
        self.failures: list[str] = []
        self.audited: list[tuple[str, str]] = []
        self._keys = {key.id: key for key in keys}
        self._refusal = refusal
        self._expired = expired

    def api_keys(self) -> dict[str, ApiKey]:
        return self._keys

    def used_key(self, key: ApiKey, host: str) -> Caller:
        if self._expired:
            raise AuthenticationFailed("the API key has expired")
        return Caller(user(key.owner), host, key)

    def check_admitted(self, _caller: Caller) -> None:
        if self._refusal:
            raise AuthenticationFailed(self._refusal)

    def audit_login(self, name: str, _host: str, _how: str, failure: str = "", key: str = "") -> None:
        self.audited.append((f"{name} {key}".strip(), failure))

    def check_failures(self, host: str) -> None:
        """Let all pass."""

    def failed(self, host: str) -> None:
        self.failures.append(host)


def verdict(request: Request, clock: SettableClock = CLOCK, settings: SqsSettings = SETTINGS) -> str:
    """The code of the refusal; empty if the request passes."""
    try:
        Signatures(settings, clock, cast("Access", Keys())).check(request)
    except Fault as fault:
        return fault.kind.code
    return ""


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(signed(), id="JSON"),
        pytest.param(
            signed(url="http://h/?Action=ListQueues&b=%2F%20x&a=1&empty="), id="a query, out of order"
        ),
        pytest.param(
            signed(url="http://h:1/000000000000/q.fifo", body=b"Action=PurgeQueue"), id="a queue's path"
        ),
        pytest.param(
            signed(url="http://h/?a.10=x&a.1=y&a=z&a-b=0&a=b"),
            id="names that others begin with, and one twice",
        ),
        pytest.param(
            signed(url="http://h//000000000000/./p/../q/"), id="a path that is not as short as it could be"
        ),
        pytest.param(signed(url="http://h/.."), id="a path to the root"),
        pytest.param(signed(method="GET", body=b""), id="no body"),
        pytest.param(signed(headers={"x-amz-note": "two  spaces "}), id="spaces in headers"),
    ],
)
def test_signatures_of_boto3_are_accepted(request_: Request) -> None:
    assert verdict(request_) == ""


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(signed(secret=OTHER_SECRET), "SignatureDoesNotMatch", id="another secret"),
        pytest.param(signed(key="AKIDOTHER"), "InvalidClientTokenId", id="another key"),
        pytest.param(signed(service="sns"), "SignatureDoesNotMatch", id="another service"),
        pytest.param(signed(region="mars-north-1"), "SignatureDoesNotMatch", id="another region"),
        pytest.param(
            with_headers(signed(), x_amz_target="AmazonSQS.DeleteQueue"),
            "SignatureDoesNotMatch",
            id="another action",
        ),
        pytest.param(
            with_headers(signed(), x_amz_extra="1"), "IncompleteSignature", id="a header slipped in"
        ),
        pytest.param(with_headers(signed(), host="other"), "SignatureDoesNotMatch", id="another host"),
        pytest.param(with_headers(signed(), x_amz_date="now"), "IncompleteSignature", id="no date"),
        pytest.param(
            with_headers(signed(), authorization=""), "MissingAuthenticationToken", id="no signature"
        ),
        pytest.param(
            with_headers(signed(), authorization="Basic eDp5"), "IncompleteSignature", id="another scheme"
        ),
        pytest.param(
            with_headers(
                signed(), authorization="AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=b"
            ),
            "IncompleteSignature",
            id="half a credential",
        ),
        pytest.param(
            with_headers(signed(), authorization="AWS4-HMAC-SHA256 Credential=a/b/c/sqs/aws4_request"),
            "IncompleteSignature",
            id="parts missing",
        ),
        pytest.param(
            with_headers(
                signed(),
                authorization=signed().headers["authorization"].replace(";host", ""),
            ),
            "IncompleteSignature",
            id="host not signed",
        ),
    ],
)
def test_tampered_requests_are_refused(request_: Request, code: str) -> None:
    assert verdict(request_) == code


def test_the_signature_covers_the_body() -> None:
    request = signed()
    other = Request(request.method, "/", "", request.headers, BODY.replace(b"q", b"p"), request.peer)
    assert verdict(other) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("ahead_s", "code"),
    [(890, ""), (-890, ""), (910, "SignatureDoesNotMatch"), (-910, "SignatureDoesNotMatch")],
)
def test_a_signature_holds_for_a_quarter_of_an_hour(ahead_s: int, code: str) -> None:
    assert verdict(signed(), StoppedClock(ahead_s)) == code


def test_a_date_that_is_not_that_of_the_key_is_refused() -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y%m%dT%H%M%SZ")
    assert verdict(with_headers(signed(), x_amz_date=tomorrow)) == "SignatureDoesNotMatch"


def test_without_credentials_nothing_is_checked() -> None:
    assert verdict(with_headers(signed(), authorization=""), settings=SqsSettings()) == ""


API_KEY = ApiKey(id="AK1", owner="alice", aws_secret="of-alice", created_ms=0)  # noqa: S106 - of tests
BY_KEY = signed(key=API_KEY.id, secret=API_KEY.aws_secret)


@pytest.mark.parametrize(
    ("request_", "access", "audited"),
    [
        pytest.param(BY_KEY, Keys(API_KEY), ("alice AK1", ""), id="key"),
        pytest.param(
            BY_KEY, Keys(API_KEY, expired=True), ("alice AK1", "the API key has expired"), id="expired key"
        ),
        pytest.param(
            BY_KEY,
            Keys(API_KEY, refusal="disabled"),
            ("alice AK1", "disabled"),
            id="key of a disabled tenant",
        ),
        pytest.param(signed(), Keys(), (ACCESS_KEY_ID, ""), id="configured key"),
        pytest.param(
            signed(), Keys(refusal="disabled"), (ACCESS_KEY_ID, "disabled"), id="configured, disabled tenant"
        ),
    ],
)
def test_a_login_is_recorded_once_as_what_it_was(
    request_: Request, access: Keys, audited: tuple[str, str]
) -> None:
    with suppress(AuthenticationFailed):
        Signatures(SETTINGS, CLOCK, cast("Access", access)).check(request_)
    assert access.audited == [audited]


@pytest.mark.parametrize(
    ("request_", "failures"),
    [
        pytest.param(signed(), [], id="right"),
        pytest.param(signed(secret=OTHER_SECRET), ["127.0.0.1"], id="wrong secret"),
        pytest.param(signed(key="other"), ["127.0.0.1"], id="unknown key"),
        pytest.param(signed(region="eu-west-1"), [], id="another region is a mistake, not a guess"),
    ],
)
def test_wrong_signatures_count_as_failed_logins(request_: Request, failures: list[str]) -> None:
    access = Keys()
    with suppress(Fault):
        Signatures(SETTINGS, CLOCK, cast("Access", access)).check(request_)
    assert access.failures == failures
