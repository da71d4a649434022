"""Checks 9 to 16 and 21 to 23: SASL, SCRAM, passwords and keys."""

import itertools
import threading
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from alpacamq.api.kafka.sasl import BEFORE_AUTHENTICATION
from alpacamq.broker.access import FREE_FAILURES
from alpacamq.protocol.apis import APIS, ApiKey
from alpacamq.protocol.error_codes import ErrorCode
from alpacamq.protocol.messages.sasl import SaslHandshakeRequest
from alpacamq.protocol.messages.users import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from alpacamq.security.scram import ClientExchange
from tests.api.http.serving import Client
from tests.api.kafka.logins import ALL, PLAIN, exchange_of, handshake, log_in, plain, send_token
from tests.api.kafka.wire import Wire, wired
from tests.hostile.target import (
    ADMIN,
    CLUSTER_SECRET,
    MALLORY,
    PASSWORDS,
    VICTIM,
    VICTIM_PASSWORD,
    Target,
    basic,
    http_request,
)
from tests.waiting import eventually

from . import Check, status

SHA_256 = "SCRAM-SHA-256"
# Addresses of this machine: failures of one check do not count in another.
_HOSTS = (f"127.1.{number // 200}.{number % 200 + 1}" for number in itertools.count())


def next_host() -> str:
    """Return an address without failed logins."""
    return next(_HOSTS)


@contextmanager
def stranger(target: Target, host: str | None = None) -> Iterator[Wire]:
    """A Kafka connection from an address without failed logins."""
    with wired(target.kafka_address, host or next_host()) as wire:
        yield wire


def _refused(wire: Wire, token: bytes) -> str:
    """Send a SASL message; return the error, and that the connection is closed."""
    response = send_token(wire, token)
    end = ", closed" if wire.is_closed else ""
    return f"{ErrorCode(response.error_code).name}{end}: {response.error_message}"


def _every_api(target: Target) -> str:
    """Send a request of every kind before authentication."""
    keys = sorted(APIS.keys() - BEFORE_AUTHENTICATION)
    for key in keys:
        with stranger(target) as wire:
            wire.send_frame(bytes((0, key, 0, APIS[key].max_version)) + bytes(200))
            assert wire.is_closed, key
    return f"{len(keys)} kinds closed"


def _during_exchange(target: Target) -> str:
    with stranger(target) as wire:
        assert handshake(wire, SHA_256) == ErrorCode.NONE
        assert send_token(wire, exchange_of(SHA_256, VICTIM, VICTIM_PASSWORD).first).error_code == 0
        wire.send_frame(bytes((0, ApiKey.METADATA, 0, 9)) + bytes(20))
        return "closed" if wire.is_closed else "answered"


def _mechanism(name: str) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        with stranger(target) as wire:
            response = wire.ask(SaslHandshakeRequest(mechanism=name), 1)
            end = ", closed" if wire.is_closed else ""
            return f"{ErrorCode(response.error_code).name}{end}"

    return attack


def _second_handshake(target: Target) -> str:
    with stranger(target) as wire:
        assert handshake(wire, SHA_256) == ErrorCode.NONE
        response = wire.ask(SaslHandshakeRequest(mechanism=PLAIN), 1)
        end = ", closed" if wire.is_closed else ""
        return f"{ErrorCode(response.error_code).name}{end}"


def _another_user(target: Target) -> str:
    """Authenticate again as another user, with its right password."""
    with stranger(target) as wire:
        assert log_in(wire, PLAIN, MALLORY, PASSWORDS[MALLORY]).error_code == 0
        # Refused for a second after the first.
        eventually(lambda: handshake(wire, PLAIN) == ErrorCode.NONE, what="another handshake")
        return _refused(wire, plain(ADMIN, PASSWORDS[ADMIN]))


def _acting_for_another(target: Target) -> str:
    with stranger(target) as wire:
        assert handshake(wire, PLAIN) == ErrorCode.NONE
        return _refused(wire, plain(MALLORY, PASSWORDS[MALLORY], acts_for=ADMIN))


def _plain_token(token: bytes) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        with stranger(target) as wire:
            assert handshake(wire, PLAIN) == ErrorCode.NONE
            return _refused(wire, token)

    return attack


def _changed_final(change: Callable[[bytes], bytes]) -> Callable[[Target], str]:
    """Send a proof of the right password, changed."""

    def attack(target: Target) -> str:
        with stranger(target) as wire:
            exchange, first = _begun(wire)
            return _refused(wire, change(exchange.final(first)))

    return attack


def _begun(wire: Wire) -> tuple[ClientExchange, bytes]:
    assert handshake(wire, SHA_256) == ErrorCode.NONE
    exchange = exchange_of(SHA_256, VICTIM, VICTIM_PASSWORD)
    return exchange, send_token(wire, exchange.first).auth_bytes


def _other_nonce(final: bytes) -> bytes:
    binding, nonce, proof = final.split(b",", 2)
    return b",".join((binding, nonce[:-4] + b"AAAA", proof))


def _first_message(message: bytes) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        with stranger(target) as wire:
            assert handshake(wire, SHA_256) == ErrorCode.NONE
            return _refused(wire, message)

    return attack


def _replayed(target: Target) -> str:
    """Send the final message of another connection, with the same first message."""
    with stranger(target) as wire:
        exchange, first = _begun(wire)
        final = exchange.final(first)
        assert send_token(wire, final).error_code == 0
    with stranger(target) as wire:
        assert handshake(wire, SHA_256) == ErrorCode.NONE
        assert send_token(wire, exchange.first).error_code == 0
        return _refused(wire, final)


def _replayed_here(target: Target) -> str:
    """Send the final message twice on one connection."""
    with stranger(target) as wire:
        exchange, first = _begun(wire)
        final = exchange.final(first)
        assert send_token(wire, final).error_code == 0
        return ErrorCode(send_token(wire, final).error_code).name


def _iterations(iterations: int) -> Callable[[Target], str]:
    """Set a password with so many iterations, as the administrator."""

    def attack(target: Target) -> str:
        new = ScramCredentialUpsertion(
            name="weak", mechanism=1, iterations=iterations, salt=bytes(16), salted_password=bytes(32)
        )
        with target.kafka(ADMIN) as wire:
            (result,) = wire.ask(AlterUserScramCredentialsRequest(upsertions=[new])).results
        return ErrorCode(result.error_code).name

    return attack


def _unknown_user(target: Target) -> str:
    """Compare the challenges of users that exist and that do not."""
    shapes = set()
    for name in (VICTIM, "unknown", "another"):
        challenges = []
        for _ in range(2):
            with stranger(target) as wire:
                assert handshake(wire, SHA_256) == ErrorCode.NONE
                first = send_token(wire, exchange_of(SHA_256, name).first).auth_bytes
            fields = dict(part.split(b"=", 1) for part in first.split(b","))
            challenges.append((fields[b"s"], fields[b"i"]))
        assert challenges[0] == challenges[1], "another challenge for the same user"
        shapes.add((len(b64decode(challenges[0][0])), challenges[0][1]))
    return "the same" if len(shapes) == 1 else f"differ: {shapes}"


def _same_refusal(target: Target) -> str:
    """Compare the refusals of a wrong password and of an unknown user, on both APIs."""
    answers = set()
    for name in (VICTIM, "unknown"):
        for mechanism in ALL:
            with stranger(target) as wire:
                response = log_in(wire, mechanism, name, "wrong")
                answers.add(f"{ErrorCode(response.error_code).name}: {response.error_message}")
        answers.add(status(target.ask_http("GET", "/topics", headers=basic(name, "wrong"))))
    return "; ".join(sorted(answers))


def guesses(count: int) -> Check:
    """Guess passwords from one address over HTTP, while the victim logs in from another with every API."""
    return Check(
        22,
        f"{count:,} passwords from one address",
        "401, then 429; SASL_AUTHENTICATION_FAILED from this address",
        lambda target: _guess(target, count),
    )


def _guess(target: Target, count: int) -> str:
    statuses: dict[int, int] = {}
    host = next_host()
    request = http_request("GET", "/topics", b"", basic(VICTIM, "guess"))

    def guess() -> None:
        with Client(target.http, host) as client:
            for _ in range(count // 100):
                client.send(request * 100)
                for _ in range(100):
                    answer = client.answer().status
                    statuses[answer] = statuses.get(answer, 0) + 1

    guessing = threading.Thread(target=guess)
    guessing.start()
    for mechanism in ALL:
        with stranger(target) as wire:
            assert log_in(wire, mechanism, VICTIM, VICTIM_PASSWORD).error_code == 0
    right = target.ask_http("GET", "/topics", headers=basic(VICTIM, VICTIM_PASSWORD))
    guessing.join()
    assert right.status == 200, right
    assert statuses.keys() == {401, 429}, statuses
    # Twenty, and one a second.
    assert statuses[401] < 3 * FREE_FAILURES, statuses
    with stranger(target, host) as wire:
        response = log_in(wire, SHA_256, VICTIM, VICTIM_PASSWORD)
    return f"401, then 429; {ErrorCode(response.error_code).name} from this address"


def _key_in_url(target: Target) -> str:
    """Send keys and passwords where they do not belong."""
    key = target.keys[MALLORY].text
    answers = {
        target.ask_http("GET", f"/topics?api_key={key}").status,
        target.ask_http("GET", f"/topics?Authorization=Bearer%20{key}").status,
        target.ask_http("GET", "/topics", headers={"X-Api-Key": key}).status,
        target.ask_http("GET", "/topics", headers={"Cookie": f"Authorization=Bearer {key}"}).status,
    }
    with Client(target.http) as client:
        client.send(f"GET http://{MALLORY}:{PASSWORDS[MALLORY]}@localhost/topics HTTP/1.1\r\n".encode())
        client.send(b"Host: localhost\r\n\r\n")
        answers.add(client.answer().status)
    with stranger(target) as wire:
        log_in(wire, PLAIN, key, key)
    with stranger(target) as wire:
        handshake(wire, PLAIN)
        _refused(wire, key.encode())
    wrong = b64encode(f"{MALLORY}:{key}".encode()).decode()
    answers.add(target.ask_http("GET", "/topics", headers={"Authorization": f"Basic {wrong}"}).status)
    target.ask_http("GET", "/topics", headers={"Authorization": f"Bearer {key}x"})
    assert answers <= {400, 401}, answers
    return "401; " + ("logged" if _logged_secrets(target) else "not logged")


def _logged_secrets(target: Target) -> list[str]:
    # The log is written by another process.
    target.wait_for_log(lambda line: line["event"] == "authentication_failed")
    log = target.broker.errors.text() + target.broker.output.text()
    hidden = [VICTIM_PASSWORD, CLUSTER_SECRET.decode(), *PASSWORDS.values()]
    for key in target.keys.values():
        hidden += [key.text.split("_", 2)[2], key.aws_secret]
    return [each for each in hidden if each in log]


def _expired(name: str) -> Callable[[Target], str]:
    def attack(target: Target) -> str:
        key = target.new_key(name, expires_in_ms=1)
        headers = {"Authorization": f"Bearer {key.text}"}
        eventually(lambda: target.ask_http("GET", "/topics", headers=headers).status == 401)
        return status(target.ask_http("GET", "/topics", headers=headers))

    return attack


_WRONG = "SASL_AUTHENTICATION_FAILED, closed: "

CHECKS = [
    Check(9, "every kind of request before SASL", "* kinds closed", _every_api),
    Check(9, "Metadata during a SCRAM exchange", "closed", _during_exchange),
    Check(10, "SASL mechanism GSSAPI", "UNSUPPORTED_SASL_MECHANISM, closed", _mechanism("GSSAPI")),
    Check(
        10,
        "SASL mechanism of 30,000 characters",
        "UNSUPPORTED_SASL_MECHANISM, closed",
        _mechanism("x" * 30_000),
    ),
    Check(11, "a second SaslHandshake during an exchange", "ILLEGAL_SASL_STATE, closed", _second_handshake),
    Check(
        12, "re-authentication as another user", f"{_WRONG}a connection cannot change its user", _another_user
    ),
    Check(
        12, "PLAIN for another user", f"{_WRONG}acting for another user is not supported", _acting_for_another
    ),
    Check(
        12,
        "PLAIN with a fourth part",
        f"{_WRONG}malformed PLAIN message",
        _plain_token(plain(MALLORY, PASSWORDS[MALLORY]) + b"\0" + ADMIN.encode()),
    ),
    Check(
        12,
        "PLAIN with a NUL in the user name",
        f"{_WRONG}malformed PLAIN message",
        _plain_token(plain(f"{ADMIN}\0{MALLORY}", PASSWORDS[MALLORY])),
    ),
    Check(
        12,
        "PLAIN with a password of 60,000 bytes",
        f"{_WRONG}wrong user name or password",
        _plain_token(plain(VICTIM, "x" * 60_000)),
    ),
    Check(
        12,
        "PLAIN without a password",
        f"{_WRONG}wrong user name or password",
        _plain_token(plain(VICTIM, "")),
    ),
    Check(
        13, "SCRAM, the nonce of the final message changed", f"{_WRONG}*nonce*", _changed_final(_other_nonce)
    ),
    Check(13, "SCRAM without a nonce", f"{_WRONG}malformed SCRAM message", _first_message(b"n,,n=victim,r=")),
    Check(14, "a password of 1 iteration", "UNACCEPTABLE_CREDENTIAL", _iterations(1)),
    Check(14, "a password of 10^9 iterations", "UNACCEPTABLE_CREDENTIAL", _iterations(10**9)),
    Check(15, "SCRAM, the final message of another connection", f"{_WRONG}*nonce*", _replayed),
    Check(15, "SCRAM, the final message again", "ILLEGAL_SASL_STATE", _replayed_here),
    Check(
        16,
        "SCRAM with channel binding",
        f"{_WRONG}channel binding is not supported",
        _first_message(b"p=tls-unique,,n=victim,r=abc"),
    ),
    Check(
        16,
        "SCRAM, channel binding changed in the final message",
        f"{_WRONG}*channel binding*",
        _changed_final(lambda final: b"c=eSws" + final[final.index(b",") :]),
    ),
    Check(
        16,
        "SCRAM with a mandatory extension",
        f"{_WRONG}*extensions*",
        _first_message(b"n,,m=x,n=victim,r=abc"),
    ),
    Check(21, "the SCRAM challenge of an unknown user", "the same", _unknown_user),
    Check(
        21,
        "the refusals of unknown users",
        "401 wrong user name or password; SASL_AUTHENTICATION_FAILED: wrong user name or password",
        _same_refusal,
    ),
    guesses(2000),
    Check(23, "a key in the URL, in other headers and as a password", "401; not logged", _key_in_url),
    Check(23, "an expired key", "401 the API key has expired", _expired(MALLORY)),
]
