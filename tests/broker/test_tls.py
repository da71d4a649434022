"""Loading of certificates, and loading them again."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from alpacamq.broker import tls
from alpacamq.broker.clock import SystemClock
from alpacamq.broker.tls import Certificates, ClientCertificates, TlsSettings, TlsVersion
from alpacamq.model.errors import InvalidConfig
from tests.certificates import Authority, Pair

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(pair: Pair, **others: object) -> TlsSettings:
    return TlsSettings(certificate=pair.certificate, key=pair.key, **others)  # type: ignore[arg-type]


def loaded(pair: Pair, **others: object) -> Certificates:
    return Certificates(settings(pair, **others), SystemClock())


def refusal(pair: Pair, **others: object) -> str:
    with pytest.raises(InvalidConfig) as refused:
        loaded(pair, **others)
    return str(refused.value)


def test_a_missing_file_is_named_with_its_setting(authority: Authority, tmp_path: Path) -> None:
    server = authority.server()
    missing = tmp_path / "missing.pem"
    assert refusal(server._replace(key=missing)).startswith(f"tls.key {missing} cannot be read")
    assert refusal(server._replace(certificate=missing)).startswith(f"tls.certificate {missing} cannot be")
    assert refusal(server, client_ca=missing).startswith(f"tls.client_ca {missing} cannot be read")
    assert refusal(server, client_ca=authority.ca, crl=missing).startswith(f"tls.crl {missing} cannot be")


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, other = authority.server("one"), authority.server("other")
    assert "does not belong to the first certificate" in refusal(one._replace(key=other.key))


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620])
def test_a_key_that_others_can_read_or_change_is_refused(authority: Authority, mode: int) -> None:
    server = authority.server()
    server.key.chmod(mode)
    assert f"chmod 600 {server.key}" in refusal(server)


def test_a_key_that_its_group_can_read_is_accepted(authority: Authority) -> None:
    server = authority.server()
    server.key.chmod(0o640)
    loaded(server)


def test_files_of_another_kind_are_refused(authority: Authority) -> None:
    server = authority.server()
    assert "is not a private key" in refusal(server._replace(key=_owned(server.certificate)))
    assert "contains no certificate" in refusal(server._replace(certificate=server.key))
    assert "is not a revocation list" in refusal(server, client_ca=authority.ca, crl=authority.ca)


def _owned(path: Path) -> Path:
    path.chmod(0o600)
    return path


def test_an_encrypted_key_needs_its_password(authority: Authority, tmp_path: Path) -> None:
    server = authority.server()
    key = serialization.load_pem_private_key(server.key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    server.key.write_bytes(key.private_bytes(pem, form, encryption))
    assert "needs tls.key_password_file" in refusal(server)
    password = tmp_path / "password"
    password.write_text("wrong\n")
    password.chmod(0o600)
    assert "cannot be decrypted" in refusal(server, key_password=password)
    password.write_text("secret\n")
    loaded(server, key_password=password)
    password.chmod(0o644)
    assert f"tls.key_password_file {password} can be read" in refusal(server, key_password=password)


def test_the_expiry_of_each_file_is_known(authority: Authority) -> None:
    server = authority.server(valid_days=10)
    expires_ms = loaded(server, client_ca=authority.ca, crl=authority.crl).expires_ms
    assert set(expires_ms) == {"tls.certificate", "tls.client_ca", "tls.crl"}
    left_ms = expires_ms["tls.certificate"] - SystemClock().now_ms()
    assert 9 * DAY_MS < left_ms <= 10 * DAY_MS


def test_an_expired_certificate_is_loaded(authority: Authority) -> None:
    certificates = loaded(authority.server(valid_days=-1))
    assert certificates.expires_ms["tls.certificate"] < SystemClock().now_ms()


def test_a_new_pair_is_loaded_and_a_mismatched_one_is_not(authority: Authority) -> None:
    server = authority.server()
    certificates = loaded(server)
    first = certificates.server_context(ClientCertificates.NONE)
    certificates.check()
    assert certificates.server_context(ClientCertificates.NONE) is first
    former_key = server.key.read_bytes()
    authority.server()
    certificates.check()
    second = certificates.server_context(ClientCertificates.NONE)
    assert second is not first
    server.key.write_bytes(former_key)
    certificates.check()
    assert certificates.server_context(ClientCertificates.NONE) is second
    assert (certificates.reloads, certificates.failed_reloads) == (1, 1)
    # The failure is reported once, and the pair is loaded when it is complete.
    certificates.check()
    authority.server()
    certificates.check()
    assert (certificates.reloads, certificates.failed_reloads) == (2, 1)


# DER of the curve of our certificates, and of one that the library does not know (prime239v3).
P256 = bytes.fromhex("06082a8648ce3d030107")
UNKNOWN_CURVE = bytes.fromhex("06082a8648ce3d030106")
# How the bits of an uncompressed point begin, and a form that does not exist.
POINT = bytes.fromhex("03420004")
NO_POINT = bytes.fromhex("03420009")


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        pytest.param(P256, UNKNOWN_CURVE, id="curve"),
        pytest.param(POINT, NO_POINT, id="point"),
    ],
)
def test_a_certificate_whose_key_is_not_supported_is_refused_and_the_former_stays(
    authority: Authority, known: bytes, unknown: bytes
) -> None:
    server = authority.server()
    certificates = loaded(server)
    former = certificates.server_context(ClientCertificates.NONE)
    der = x509.load_pem_x509_certificate(server.certificate.read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    assert der.count(known) == 1
    server.certificate.write_text(ssl.DER_cert_to_PEM_cert(der.replace(known, unknown)))
    certificates.check()
    assert certificates.server_context(ClientCertificates.NONE) is former
    assert certificates.failed_reloads == 1
    assert f"tls.certificate {server.certificate} has a public key that is not supported" in refusal(server)


def test_a_private_key_that_is_not_supported_is_refused(authority: Authority) -> None:
    server = authority.server()
    key = serialization.load_pem_private_key(server.key.read_bytes(), None)
    form = (serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    der = key.private_bytes(*form).replace(P256, UNKNOWN_CURVE)
    server.key.write_text(ssl.DER_cert_to_PEM_cert(der).replace("CERTIFICATE", "PRIVATE KEY"))
    assert "has an algorithm that is not supported" in refusal(server)


def test_a_key_that_disappears_while_it_is_read_is_refused(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = authority.server()
    text = server.key.read_bytes()
    server.key.unlink()
    monkeypatch.setattr(tls, "_read", lambda _setting, _path: text)
    assert refusal(server).startswith(f"tls.key {server.key} cannot be read")


def test_an_unexpected_error_keeps_the_former_contexts(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = loaded(authority.server())
    former = certificates.server_context(ClientCertificates.NONE)

    def fail(_settings: TlsSettings) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(tls, "_load", fail)
    authority.server()
    certificates.check()
    assert certificates.server_context(ClientCertificates.NONE) is former
    assert certificates.failed_reloads == 1


def test_the_lowest_version_and_the_mode_are_those_of_the_settings(authority: Authority) -> None:
    certificates = loaded(authority.server(), client_ca=authority.ca, min_version=TlsVersion.TLS_1_3)
    required = certificates.server_context(ClientCertificates.REQUIRED)
    assert required.minimum_version is ssl.TLSVersion.TLSv1_3
    assert required.verify_mode is ssl.CERT_REQUIRED
    assert certificates.server_context(ClientCertificates.REQUESTED).verify_mode is ssl.CERT_OPTIONAL
    assert certificates.server_context(ClientCertificates.NONE).verify_mode is ssl.CERT_NONE
