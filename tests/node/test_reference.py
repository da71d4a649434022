"""The texts generated from the table of options."""

import tomllib
from pathlib import Path

import pytest

from alpacamq.model.topics import SETTINGS
from alpacamq.node.config import OPTIONS, NodeConfig, example, load
from alpacamq.node.options import Option


def test_the_example_is_the_default_configuration(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(example())
    assert load(path, {}, {}) == NodeConfig()


@pytest.mark.parametrize("key", [key for key, option in OPTIONS.items() if isinstance(option, Option)])
def test_the_example_contains_every_option(key: str) -> None:
    section, _, name = key.partition(".")
    assert name in tomllib.loads(example())[section]


def test_every_topic_setting_in_the_example_can_be_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "alpacamq.toml"
    path.write_text(example().replace('# "', '"'))
    assert load(path, {}, {}).topics.defaults.keys() == SETTINGS.keys()
