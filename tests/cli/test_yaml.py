"""Plain data as YAML."""

import pytest

from alpacamq.cli.yaml import Plain, yaml


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param({"a": 1, "b": [True, None]}, "a: 1\nb:\n  - true\n  - null", id="nested blocks"),
        pytest.param([{"a": 1, "b": 2}, {"a": 3}], "- a: 1\n  b: 2\n- a: 3", id="a list of mappings"),
        pytest.param({"a": [], "b": {}, "c": ""}, 'a: []\nb: {}\nc: ""', id="what is empty"),
        pytest.param([[1, 2], ["x"]], "- - 1\n  - 2\n- - x", id="lists in lists"),
        pytest.param({"yes": "No", "on": "null"}, '"yes": "No"\n"on": "null"', id="words readers mistake"),
        pytest.param(["1", "1.5", "0x1f", "~"], '- "1"\n- "1.5"\n- "0x1f"\n- "~"', id="text like numbers"),
        pytest.param(["a: b", "# c", "- d", "e\nf"], '- "a: b"\n- "# c"\n- "- d"\n- "e\\nf"', id="syntax"),
        pytest.param(["größe", "\x85\x7f", "😀"], '- "größe"\n- "\\u0085\\u007f"\n- "😀"', id="beyond ASCII"),
    ],
)
def test_yaml(data: Plain, expected: str) -> None:
    assert yaml(data) == expected
