"""`alpacamq health`: asks the broker of a configuration whether it serves, for container health checks."""

import http.client
import socket
import ssl
import sys
from http import HTTPStatus

import msgspec

from alpacamq.model.address import Address

from .config import NodeConfig
from .options import ConfigError

TIMEOUT_SECONDS = 5.0
LIVE, READY = "/livez", "/readyz"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - they are replaced
_MAX_ANSWER_BYTES = 64 << 10


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a response that is printed: its status, or what is wrong."""

    status: str | int = ""
    detail: str = ""


def check_health(config: NodeConfig, *, is_liveness_enough: bool = False) -> int:
    """Print what the broker on this machine answers; return 0 if it serves, else 1.

    Without the HTTP API, a broker that accepts connections of Kafka clients counts as serving.
    """
    try:
        if config.http.enabled:
            print(_ask(config, LIVE if is_liveness_enough else READY))
        else:
            address = _reachable(config.kafka.listen, "kafka.listen")
            socket.create_connection((address.host, address.port), TIMEOUT_SECONDS).close()
            print("ok")
    except _NotServing as error:
        print(f"alpacamq: {error}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        print(f"alpacamq: the broker does not answer: {why or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


class _NotServing(Exception):
    """The broker answers that it does not serve."""


def _ask(config: NodeConfig, path: str) -> str:
    address = _reachable(config.http.listen, "http.listen")
    if config.http.tls:
        # The broker is on this machine, and its certificate names it as clients know it.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if config.tls.certificate is not None and config.tls.key_password_file is None:
            # For listeners that require one.
            context.load_cert_chain(config.tls.certificate, config.tls.key)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address.host, address.port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_SECONDS)
    try:
        # Names other than localhost may not be among those that the broker accepts.
        connection.request("GET", path, headers={"Host": "localhost"})
        response = connection.getresponse()
        content = response.read(_MAX_ANSWER_BYTES)
    finally:
        connection.close()
    try:
        answer = msgspec.json.decode(content, type=Answer)
    except msgspec.DecodeError:
        raise _NotServing(f"{address} is not the HTTP API of a broker; see http.listen") from None
    if response.status != HTTPStatus.OK:
        raise _NotServing(answer.detail or f"it answers {response.status}")
    return str(answer.status)


def _reachable(listen: Address, setting: str) -> Address:
    if listen.port == 0:
        raise ConfigError(f"{setting} has port 0, which selects a free port: name the address with --http")
    return Address(_WILDCARDS.get(listen.host, listen.host), listen.port)
