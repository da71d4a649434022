"""The section [security] and the users file."""

from pathlib import Path

import pytest

from alpacamq.node.config import ConfigError, load
from alpacamq.node.security import read_users, security_settings
from alpacamq.security.principals import user
from alpacamq.security.scram import Mechanism, has_password


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
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: dict[str, str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(None, {}, values)
