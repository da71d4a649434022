"""The texts generated from the table of options."""

import re
import tomllib
from pathlib import Path

import pytest

from alpacamq.model.address import Address
from alpacamq.model.topics import SETTINGS
from alpacamq.node.config import LISTENERS, OPTIONS, NodeConfig, example, load
from alpacamq.node.listeners import ListenerConfig
from alpacamq.node.options import Option


def test_the_example_is_the_default_configuration(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(example())
    assert load(path, {}, {}) == NodeConfig()


def _with_a_listener(text: str) -> str:
    """Return the example with its table [listeners.NAME] uncommented, and a name."""
    before, head, after = text.partition("# [listeners.NAME]\n")
    table, end, rest = after.partition("\n[")
    values = re.sub(r"(?m)^# (\w+ = )", r"\1", table)
    return f"{before}[listeners.external]\n{values}{end}{rest}" if head else text


def test_the_listener_of_the_example_can_be_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(_with_a_listener(example()).replace('listen = ""', 'listen = "127.0.0.1:9094"'))
    listen = Address("127.0.0.1", 9094)
    assert load(path, {}, {}).listeners == {"external": ListenerConfig(listen=listen)}


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if isinstance(option, Option)])
def test_the_example_contains_every_option(key: str) -> None:
    section, _, name = key.rpartition(".")
    document = tomllib.loads(_with_a_listener(example()))
    table = document["listeners"]["external"] if section == LISTENERS else document[section]
    assert name in table


def test_every_topic_setting_in_the_example_can_be_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(example().replace('# "', '"'))
    assert load(path, {}, {}).topics.defaults.keys() == SETTINGS.keys()
