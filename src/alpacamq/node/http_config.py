"""The sections of the doors that speak HTTP, which have an address, a switch and limits in common."""

import ipaddress
from typing import Annotated

import msgspec
from msgspec import Meta

from alpacamq.model.address import Address
from alpacamq.model.topics import INT32_MAX, MIB

from .options import SECRET, ConfigError

KIB = 1 << 10
TIB = 1 << 40


HostName = Annotated[str, Meta(pattern=r"^(\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?)$")]


class HttpDoorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every one of them has."""

    enabled: Annotated[bool, Meta(description="Whether this door is open at all.")] = True
    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is every interface; port 0 takes a free port."),
    ] = Address("127.0.0.1", 0)
    hosts: Annotated[
        tuple[HostName, ...],
        Meta(
            title="a list of host names",
            description="Names by which clients address this door, beside IP addresses, localhost, this "
            "machine's host name, the names listened on and kafka.advertised; requests with another "
            "name in their Host header are answered 421. `*.example.com` is every name below "
            "example.com, `*` every name there is, which lets pages of other sites in (DNS rebinding).",
        ),
    ] = ()
    max_connections: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="Connections open at once. For a further one the connection idle for longest is "
            "closed; where none is idle, the new one is answered 503 and closed.",
        ),
    ] = 2000
    idle_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="A connection without a request for this long is closed; "
            "so is one that takes nothing of its answer for as long.",
        ),
    ] = 60_000
    header_timeout_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=INT32_MAX,
            description="Time for the head of a request to arrive whole once its first byte has, and again "
            "for its body; a large body gets as much more as it needs at 64 KiB/s.",
        ),
    ] = 10_000
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=KIB, le=INT32_MAX, description="The largest body; a request with a larger one is answered 413."
        ),
    ] = 16 * MIB
    in_flight_bytes: Annotated[
        int,
        Meta(
            ge=KIB,
            le=TIB,
            description="Bytes of requests under way and of answers not taken, of all connections together; "
            "beyond it requests are answered 503. At least max_body_bytes.",
        ),
    ] = 128 * MIB


class HttpConfig(HttpDoorConfig, frozen=True, kw_only=True):
    """[http]: the door for HTTP clients, with JSON."""

    listen: Annotated[
        Address,
        Meta(description="Address to listen on. 0.0.0.0 is every interface; port 0 takes a free port."),
    ] = Address("127.0.0.1", 8080)


class SqsConfig(HttpDoorConfig, frozen=True, kw_only=True):
    """[sqs]: the door for AWS SDKs that speak SQS."""

    listen: Annotated[
        Address,
        Meta(
            description="Address to listen on. One that other machines reach needs credentials, "
            "or allow_anonymous; port 0 takes a free port."
        ),
    ] = Address("127.0.0.1", 9324)
    access_key_id: Annotated[
        str,
        Meta(description="The key id whose signatures are accepted. Empty: signatures are not checked."),
    ] = ""
    secret_access_key: Annotated[
        str, Meta(description="The secret that belongs to access_key_id.", extra=SECRET)
    ] = ""
    allow_anonymous: Annotated[
        bool,
        Meta(
            description="Whether other machines are served without credentials being configured: "
            "whoever reaches the address may then read and delete everything."
        ),
    ] = False
    region: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9-]{1,64}$",
            title="the name of a region",
            description="The AWS region the door says it is in; clients sign for it.",
        ),
    ] = "us-east-1"
    account_id: Annotated[
        str,
        Meta(
            pattern="^[0-9]{12}$",
            title="12 digits",
            description="The AWS account that its queues belong to; part of their addresses.",
        ),
    ] = "000000000000"


def check_http(section: str, config: HttpDoorConfig) -> None:
    """Refuse limits that cannot be kept together."""
    if config.in_flight_bytes < config.max_body_bytes:
        raise ConfigError(
            f"{section}.in_flight_bytes ({config.in_flight_bytes}) must be at least "
            f"{section}.max_body_bytes ({config.max_body_bytes})"
        )


def check_sqs(config: SqsConfig) -> None:
    """Refuse half a pair of credentials, and a door that stands open to everyone unless that is meant."""
    if bool(config.access_key_id) != bool(config.secret_access_key):
        raise ConfigError("sqs.access_key_id and sqs.secret_access_key go together: set both or neither")
    if config.enabled and not (config.access_key_id or config.allow_anonymous or _is_loopback(config.listen)):
        raise ConfigError(
            f"sqs.listen ({config.listen}) is reached by other machines, and nothing says who may use it: "
            "set sqs.access_key_id and sqs.secret_access_key, or sqs.allow_anonymous = true"
        )


def _is_loopback(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        return address.host.lower() == "localhost"
