"""Which nodes reach each other while cluster.tls is changed, one node after the other."""

import ssl
from enum import Enum
from pathlib import Path

import pytest

from alpacamq.api.tls import Handshakes, ListenerTls
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.peers.connection import PeerTls, ask
from alpacamq.broker.peers.handshake import HandshakeFailed
from alpacamq.broker.tls import Certificates, ClientCertificates, TlsSettings
from alpacamq.model.address import Address
from alpacamq.telemetry.logs import capture_logs
from tests.certificates import Authority

from .nodes import SECRET, VALUES, Numbers, a_node, local

EVENT = "node_connected_without_tls"


class Use(Enum):
    """How a node uses TLS."""

    PLAIN = "plain"
    OPTIONAL = "optional"
    TLS = "tls"


def certificates_of(authority: Authority) -> Certificates:
    pair = authority.server()
    settings = TlsSettings(certificate=pair.certificate, key=pair.key, client_ca=authority.ca)
    return Certificates(settings, SystemClock())


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return certificates_of(Authority(tmp_path / "authority"))


def listener_tls(use: Use, certificates: Certificates) -> ListenerTls | None:
    if use is Use.PLAIN:
        return None
    return ListenerTls(
        certificates=certificates,
        handshakes=Handshakes(),
        client_certificates=ClientCertificates.REQUIRED,
        names_principals=False,
        is_optional=use is Use.OPTIONAL,
    )


def peer_tls(use: Use, certificates: Certificates) -> PeerTls | None:
    return None if use is Use.PLAIN else PeerTls(certificates.peer_context, use is Use.OPTIONAL)


async def numbers(address: Address, tls: PeerTls | None, secret: bytes = SECRET) -> object:
    _, reply = await ask(address, local(1), secret, VALUES, Numbers(count=2), timeout_ms=5000, tls=tls)
    return reply


@pytest.mark.parametrize("dialling", Use)
@pytest.mark.parametrize("listening", Use)
async def test_nodes_reach_each_other_unless_one_requires_tls_and_the_other_has_none(
    certificates: Certificates, listening: Use, dialling: Use
) -> None:
    tls = peer_tls(dialling, certificates)
    async with a_node(2, tls=listener_tls(listening, certificates)) as node:
        if {listening, dialling} == {Use.PLAIN, Use.TLS}:
            with pytest.raises((OSError, HandshakeFailed)):
                await numbers(node.address, tls)
            return
        with capture_logs() as logged:
            assert await numbers(node.address, tls) == [0, 1]
        warned = [event for event in logged if event["event"] == EVENT]
        assert len(warned) == (listening is Use.PLAIN and dialling is Use.OPTIONAL)


@pytest.mark.parametrize("dialling", [Use.PLAIN, Use.OPTIONAL])
async def test_the_secret_is_needed_with_and_without_tls(certificates: Certificates, dialling: Use) -> None:
    async with a_node(2, tls=listener_tls(Use.OPTIONAL, certificates)) as node:
        with pytest.raises(HandshakeFailed):
            await numbers(node.address, peer_tls(dialling, certificates), b"another secret of the tests")


async def test_a_certificate_of_another_authority_is_reported_and_does_without_tls(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = certificates_of(Authority(tmp_path / "other", "Another CA"))
    async with a_node(2, tls=listener_tls(Use.OPTIONAL, certificates)) as node:
        with capture_logs() as logged:
            assert await numbers(node.address, peer_tls(Use.OPTIONAL, other)) == [0, 1]
        (event,) = [event for event in logged if event["event"] == EVENT]
        assert "CERTIFICATE_VERIFY_FAILED" in event["reason"]
        with pytest.raises(ssl.SSLError):
            await numbers(node.address, peer_tls(Use.TLS, other))
