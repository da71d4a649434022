"""The section [security] and the users file."""

from pathlib import Path

import pytest

from alpacamq.node.config import ConfigError, load
from alpacamq.node.security import read_users, security_settings
from alpacamq.security.principals import user
from alpacamq.security.scram import Mechanism, has_password
from tests import tokens

PROVIDER = {"security.jwt_issuer": tokens.ISSUER, "security.jwt_audience": tokens.AUDIENCE}


def written(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "users"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_users_file_has_names_and_passwords(tmp_path: Path) -> None:
    path = written(tmp_path, "# first users\n\nadmin:se:cret\nbob:x\n")
    users = read_users(path)
    assert set(users) == {"admin", "bob"}
    for mechanism in Mechanism:
        assert has_password(mechanism, users["admin"].credentials[mechanism], "se:cret")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("admin", "line 1: must be NAME:PASSWORD"),
        ("a:b\nadmin:", "line 2: must be NAME:PASSWORD"),
        (":secret", "line 1: invalid user name"),
        ("a:1\na:2", "line 2: user a has a line already"),
    ],
)
def test_faults_of_the_users_file_name_the_line_but_no_password(
    tmp_path: Path, text: str, fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault) as refused:
        read_users(written(tmp_path, text))
    assert "secret" not in str(refused.value).replace("users_file", "")


def test_a_users_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        read_users(written(tmp_path, "a:b", 0o640))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_users(tmp_path / "missing")


def test_settings_come_from_the_section() -> None:
    values = {"security.acls": "true", "security.super_users": "User:admin,User:ops"}
    settings = security_settings(load(None, {}, values).security)
    assert (settings.authentication, settings.acls) == (False, True)
    assert settings.super_users == (user("admin"), user("ops"))


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"security.super_users": "admin"}, "as in User:admin|as in User:alice"),
        ({"security.acls": "true"}, "security.super_users is empty"),
        ({"security.jwks_url": "http://example.com/keys", **PROVIDER}, "must be https"),
        ({"security.jwks_url": "https://login..example.com/jwks", **PROVIDER}, "must have a valid host name"),
        (
            {"security.jwks_url": "https://example.com/keys", "security.jwt_issuer": "i"},
            "jwt_audience is empty",
        ),
        (
            {"security.jwks_url": "https://example.com/keys", "security.jwt_audience": "a"},
            "jwt_issuer is empty",
        ),
        (PROVIDER, "need security.jwks_url or security.jwks_file"),
        (
            {"security.jwks_url": "https://example.com/keys", "security.jwks_file": "/x", **PROVIDER},
            "both set",
        ),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(None, {}, values)


def test_the_keys_of_a_provider_are_looked_at_before_the_broker_starts(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    config = load(None, {}, {"security.jwks_file": str(file), **PROVIDER}).security
    with pytest.raises(ConfigError, match=r"jwks_file .* cannot be read"):
        security_settings(config)
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"jwks_file .* not a JWK set"):
        security_settings(config)
    file.write_bytes(tokens.jwks("ed"))
    found = security_settings(config).tokens
    assert found is not None
    assert (found.rules.issuer, found.keys.file) == (tokens.ISSUER, file)


def test_the_secret_of_delegation_tokens_is_long_private_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    config = load(None, {}, {"security.delegation_token_secret_file": str(file)}).security
    with pytest.raises(ConfigError, match="cannot be read"):
        security_settings(config)
    file.write_text("short")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="has 5 bytes"):
        security_settings(config)
    file.write_text("a long random text\n")
    settings = security_settings(config)
    assert settings.delegation is not None
    assert settings.delegation.secret == b"a long random text"
    assert "random" not in repr(settings)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        security_settings(config)


def test_a_listener_with_oauthbearer_needs_a_provider(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[listeners.other]\nlisten = '127.0.0.1:9095'\nmechanisms = ['OAUTHBEARER']\n")
    with pytest.raises(ConfigError, match=r"other.mechanisms has OAUTHBEARER: set security.jwks_url"):
        load(file, {}, {})
    load(file, {}, {"security.jwks_url": "https://example.com/keys", **PROVIDER})
