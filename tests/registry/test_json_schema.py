"""Parsing of JSON schemas, their texts, references and limits, and the check of data."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.registry.json_schema.schema import JsonSchema, parse
from alpacamq.registry.schema import (
    MAX_DEPTH,
    MAX_SCHEMA_BYTES,
    Dependency,
    InvalidData,
    InvalidSchema,
    Mismatch,
    ParsedSchema,
)

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def parsed(schema: Any, **dependencies: Any) -> JsonSchema:
    texts = [Dependency(name, msgspec.json.encode(each).decode()) for name, each in dependencies.items()]
    return parse(msgspec.json.encode(schema).decode(), texts)


def mismatch(schema: Any, value: Any, **dependencies: Any) -> Mismatch | None:
    return parsed(schema, **dependencies).mismatch(msgspec.json.encode(value))


def refusal(text: str) -> str:
    with pytest.raises(InvalidSchema) as refused:
        parse(text)
    return str(refused.value)


def test_a_json_schema_is_what_the_registry_asks_of_a_schema() -> None:
    schema: ParsedSchema = parse('{"type": "integer"}')
    assert schema.mismatch(b"1") is None


def test_the_canonical_text_keeps_keys_and_numbers_and_drops_white_space() -> None:
    text = '{\n "type": "number", "minimum": 1.50, "maximum": 1e5, "title": "\\u00e4\\/\\u0000", "a": [ 1 ]}'
    expected = '{"type":"number","minimum":1.50,"maximum":1E+5,"title":"ä/\\u0000","a":[1]}'
    assert parse(text).canonical == expected
    assert parse(expected).canonical == expected


def test_the_normalized_text_sorts_keys_and_nothing_else() -> None:
    text = '{"type": ["string", "null"], "properties": {"b": {}, "a": {"title": "", "description": ""}}}'
    expected = '{"properties":{"a":{"description":"","title":""},"b":{}},"type":["string","null"]}'
    assert parse(text).normalized == expected


def test_normalized_keys_are_in_the_order_of_utf_16() -> None:
    assert parse('{"\uffee": 1, "\U0001f999": 2}').normalized == '{"\U0001f999":2,"\uffee":1}'


def test_booleans_are_schemas() -> None:
    assert parse(" true ").canonical == "true"
    assert parse("true").mismatch(b"1") is None
    assert parse("false").mismatch(b"1") == Mismatch("", "no value is allowed here")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "Input data was truncated at line 1, column 1", id="empty"),
        pytest.param('{"a": 1', "Input data was truncated at line 1, column 8", id="truncated"),
        pytest.param('{\n  "ä": ,\n}', "invalid character at line 2, column 8", id="invalid character"),
        pytest.param('{"minimum": NaN}', "invalid character at line 1, column 13", id="NaN"),
        pytest.param('{"a": "\ud800"}', "lone surrogate at line 1, column 8", id="lone surrogate"),
        pytest.param("[" * 100_000, "nested more than 200 levels", id="100,000 arrays"),
        pytest.param('{"not":' * 100_000, "nested more than 200 levels", id="100,000 objects"),
        pytest.param(
            f'{{"const": {"[" * 201}{"]" * 201}}}', "nested more than 200 levels", id="201 levels in a value"
        ),
        pytest.param(
            '{"maximum": 1e999999999}',
            "number 1e999999999… has more than 1000 digits",
            id="huge exponent",
        ),
        pytest.param(
            f'{{"maximum": 1e{"9" * 900}}}',
            f"number 1e{'9' * 18}… has more than 1000 digits",
            id="exponent of many digits",
        ),
        pytest.param(
            f'{{"maximum": {"1" * 10_000}}}',
            "Integer value out of range",
            id="huge integer",
        ),
    ],
)
def test_broken_json_is_refused_with_its_place(text: str, reason: str) -> None:
    assert refusal(text) == f"Invalid JSON: {reason}"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param(1, "A JSON schema must be an object or a boolean", id="a number"),
        pytest.param({"properties": 5}, '/properties: 5 is not of type "object"', id="no properties"),
        pytest.param(
            {"properties": {"a/b": {"items": {"minLength": -1}}}},
            "/properties/a~1b/items/minLength: -1 is less than the minimum of 0",
            id="deep inside",
        ),
        pytest.param(
            {"allOf": [{}, {}, {}, 3]}, "/allOf/3: a schema must be an object or a boolean", id="no schema"
        ),
        pytest.param({"$schema": 3}, '/$schema: 3 is not of type "string"', id="$schema"),
        pytest.param(
            {"$schema": DRAFT_4, "required": []}, "/required: [] has less than 1 item", id="Draft 4"
        ),
        pytest.param({"pattern": "("}, '/pattern: "(" is not a "regex"', id="pattern"),
        pytest.param({"$id": "http://[a"}, "Invalid URI 'http://[a': Invalid IPv6 URL", id="$id"),
        pytest.param(
            {"$ref": "#/x", "x": {"minLength": -1}},
            "/x/minLength: -1 is less than the minimum of 0",
            id="in a place that only a reference makes a schema",
        ),
    ],
)
def test_an_invalid_schema_is_refused_with_a_json_pointer(schema: Any, reason: str) -> None:
    assert refusal(msgspec.json.encode(schema).decode()) == reason


@pytest.mark.parametrize(
    ("draft", "is_valid"),
    [
        (DRAFT_4, True),
        ("http://json-schema.org/schema#", True),
        ("http://json-schema.org/draft-06/schema", False),
        (DRAFT_7, False),
        ("https://json-schema.org/draft-07/schema", False),
        (DRAFT_2019, False),
        (f"{DRAFT_2020}#", False),
        ("https://example.com/own-meta-schema", False),
        (None, False),
    ],
)
def test_the_draft_decides_what_is_valid(draft: str | None, is_valid: bool) -> None:
    # Booleans as exclusive limits are valid in Draft 4 only.
    schema = {"minimum": 1, "exclusiveMinimum": True, **({"$schema": draft} if draft else {})}
    if is_valid:
        assert mismatch(schema, 1) == Mismatch("", "1 is less than or equal to the minimum of 1")
    else:
        assert refusal(msgspec.json.encode(schema).decode()).startswith("/exclusiveMinimum")


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(
            {"properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": {"type": "null"}}}
        ),
        pytest.param({"properties": {"a": {"$ref": "#/$defs/x"}}, "definitions": {"x": {"type": "null"}}}),
        pytest.param({"properties": {"a": {"$ref": "#/x/y"}}, "x": {"y": {"type": "null"}}}),
        pytest.param(
            {"properties": {"a": {"$ref": "#x"}}, "definitions": {"x": {"$id": "#x", "type": "null"}}}
        ),
        pytest.param(
            {
                "$schema": DRAFT_2020,
                "properties": {"a": {"$ref": "#x"}},
                "$defs": {"y": {"$anchor": "x", "type": "null"}},
            }
        ),
        pytest.param(
            {
                "$schema": DRAFT_4,
                "id": "http://example.com/root",
                "properties": {"a": {"$ref": "x"}},
                "definitions": {"y": {"id": "x", "type": "null"}},
            }
        ),
        pytest.param(
            {
                "$id": "http://example.com/root",
                "properties": {"a": {"$ref": "x", "$id": "http://elsewhere.example.com/ignored"}},
                "definitions": {"y": {"$id": "x", "type": "null"}},
            }
        ),
        pytest.param(
            {
                "$id": "urn:example:root",
                "properties": {"a": {"$ref": "#/definitions/x%20y~1z"}},
                "definitions": {"x y/z": {"type": "null"}},
            }
        ),
    ],
)
def test_references_lead_to_places_in_the_schema(schema: Any) -> None:
    assert mismatch(schema, {"a": 1}) == Mismatch("/a", '1 is not of type "null"')
    assert mismatch(schema, {"a": None}) is None


def test_references_lead_to_dependencies_by_their_name() -> None:
    text = '{"properties": {"a": {"$ref": "http://example.com/a"}, "b": {"$ref": "com.example.B"}}}'
    dependencies = [
        Dependency("http://example.com/a", '{"type": "object"}'),
        Dependency("c.json", '{"definitions": {"x": {"type": "null"}}}'),
        # Its $id would make c.json another URI.
        Dependency("com.example.B", '{"$id": "http://elsewhere.example.com/b", "$ref": "c.json#/$defs/x"}'),
    ]
    schema = parse(text, dependencies)
    assert schema.mismatch(b'{"a": 1}') == Mismatch("/a", '1 is not of type "object"')
    assert schema.mismatch(b'{"b": 1}') == Mismatch("/b", '1 is not of type "null"')


def test_a_dependency_keeps_its_own_draft() -> None:
    schema = {"$schema": DRAFT_2020, "properties": {"a": {"$ref": "old"}}}
    old = {"$schema": DRAFT_4, "maximum": 5, "exclusiveMaximum": True}
    found = mismatch(schema, {"a": 5}, old=old)
    assert found == Mismatch("/a", "5 is greater than or equal to the maximum of 5")


def test_keywords_of_other_drafts_are_ignored() -> None:
    schema = {"if": {"properties": 5}, "contains": 3, "dependentSchemas": None, "type": "array"}
    assert mismatch({"$schema": DRAFT_4, **schema}, {"a": 1}) == Mismatch(
        "", '{"a":1} is not of type "array"'
    )
    assert "/$defs/a/minLength: -1" in refusal('{"$ref": "#/$defs/a", "$defs": {"a": {"minLength": -1}}}')


def test_meta_schemas_can_be_referred_to() -> None:
    schema = {"$schema": DRAFT_2020, "properties": {"a": {"$ref": DRAFT_2020}}}
    assert mismatch(schema, {"a": {"type": "string"}}) is None
    assert mismatch(schema, {"a": {"type": 5}}) == Mismatch("/a", "the value does not match the schema")


def outcome(schema: Any, **dependencies: Any) -> str:
    """Return why a schema is refused, or why the value "text" does not match it."""
    try:
        return str(parsed(schema, **dependencies).mismatch(b'"text"'))
    except InvalidSchema as refused:
        return str(refused)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$recursiveRef"])
def test_nothing_is_read_from_files_or_the_network(keyword: str, tmp_path: Path) -> None:
    (tmp_path / "integer.json").write_text('{"type": "integer"}')
    draft = {"$schema": DRAFT_2019 if keyword == "$recursiveRef" else DRAFT_2020}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        for uri in (f"file://{tmp_path}/integer.json", f"http://127.0.0.1:{port}/a"):
            assert f"unresolved reference '{uri}'" in outcome({**draft, keyword: uri})
            assert f"unresolved reference '{uri}'" in outcome(
                {**draft, "$ref": "a"}, a={**draft, keyword: uri}
            )
            # Definitions without use are refused or ignored.
            found = outcome({**draft, "$defs": {"a": {keyword: uri}}})
            assert found == "None" or "is not among the references of the schema" in found
            assert outcome({"$schema": uri, "properties": {"a": {"$id": "b", "$schema": uri}}}) == "None"
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_unresolved_reference_is_refused_with_its_place() -> None:
    assert refusal('{"properties": {"a": {"$ref": "b.json"}}}') == (
        "/properties/a: unresolved reference 'b.json'; it must lead to a place in the schema"
        " or to one of its references"
    )


@pytest.mark.parametrize(
    ("schema", "dependencies", "reason"),
    [
        pytest.param({"$ref": "#"}, {}, "/: reference '#' leads back to itself", id="itself"),
        pytest.param(
            {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#"}}},
            {},
            "/: reference '#/definitions/a' leads back to itself",
            id="itself by way of another",
        ),
        pytest.param(
            {"properties": {"x": {"$ref": "a"}}},
            {"a": {"properties": {"x": {"$ref": "b"}}}, "b": {"properties": {"x": {"$ref": "a"}}}},
            "References between schemas form a circle: the schema itself, a, b",
            id="two dependencies",
        ),
        pytest.param(
            {"$id": "http://example.com/root", "properties": {"x": {"$ref": "a"}}},
            {"a": {"properties": {"x": {"$ref": "root"}}}},
            "References between schemas form a circle: the schema itself, a",
            id="a dependency that uses the schema",
        ),
    ],
)
def test_circles_of_references_are_refused(schema: Any, dependencies: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSchema) as refused:
        parsed(schema, **dependencies)
    assert str(refused.value) == reason


def test_a_recursive_schema_is_no_circle() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert mismatch(schema, {"next": {"next": 1}}) == Mismatch("/next/next", '1 is not of type "object"')


def chain(length: int) -> dict[str, Any]:
    return {**{f"d{number}": {"$ref": f"d{number + 1}"} for number in range(length)}, f"d{length}": {}}


def test_schemas_and_references_have_a_bounded_depth() -> None:
    assert parse('{"not":' * 99 + "{}" + "}" * 99)
    assert "schemas are nested more than 100 levels" in refusal('{"not":' * 100 + "{}" + "}" * 100)
    assert parsed({"$ref": "d0"}, **chain(98))
    with pytest.raises(InvalidSchema, match="References between schemas are more than 100 levels deep"):
        parsed({"$ref": "d0"}, **chain(99))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        pytest.param(
            {"a": "x" * MAX_SCHEMA_BYTES},
            f"The schema has {MAX_SCHEMA_BYTES + 8} bytes; the limit is {MAX_SCHEMA_BYTES}",
            id="bytes",
        ),
        pytest.param(
            {"oneOf": [{"const": number} for number in range(20_000)]},
            "The schema contains more than 20000 schemas",
            id="schemas",
        ),
        pytest.param(
            {
                "anyOf": [{"$ref": f"#/definitions/d{number}"} for number in range(1001)],
                "definitions": {f"d{number}": {} for number in range(1001)},
            },
            "The schema refers to more than 1000 definitions",
            id="definitions",
        ),
        pytest.param(
            {"pattern": "(a{1000}){1000}"},
            "The regular expressions of the schema are too large",
            id="pattern",
        ),
        pytest.param(
            {"properties": {f"p{number}": {"pattern": f"a{number}{{30}}"} for number in range(1500)}},
            "The regular expressions of the schema are too large",
            id="patterns",
        ),
        pytest.param(
            {"patternProperties": {"(" * 100_000: {}}},
            "The regular expressions of the schema are too large",
            id="groups",
        ),
        pytest.param(
            {"pattern": "[" + "a" * 100_000 + "]"},
            "The regular expressions of the schema are too large",
            id="class",
        ),
    ],
)
def test_schemas_that_take_too_long_to_build_are_refused(schema: Any, reason: str) -> None:
    assert refusal(msgspec.json.encode(schema).decode()) == reason


PERSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "name": {"type": "string", "maxLength": 10, "pattern": "^[a-z]+$"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "pair": {"items": [{"type": "string"}], "additionalItems": False},
        "address": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/address"}]},
        "role": {"anyOf": [{"const": "user"}, {"const": "admin"}]},
        "~x/y": {"not": {"type": "null"}},
    },
    "patternProperties": {"^n_": {"type": "number"}},
    "additionalProperties": False,
    "required": ["id"],
    "dependencies": {"name": ["tags"]},
    "definitions": {"address": {"type": "object", "required": ["city"], "maxProperties": 2}},
}


@pytest.mark.parametrize(
    ("value", "path", "message"),
    [
        ([], "", '[] is not of type "object"'),
        ({}, "", '"id" is a required property'),
        ({"id": "1"}, "/id", '"1" is not of type "integer"'),
        ({"id": 0}, "/id", "0 is less than the minimum of 1"),
        ({"id": 1, "name": "A", "tags": []}, "/name", '"A" does not match "^[a-z]+$"'),
        ({"id": 1, "name": "a"}, "", '"tags" is a required property'),
        ({"id": 1, "tags": ["a", 2]}, "/tags/1", '2 is not of type "string"'),
        ({"id": 1, "pair": ["a", 2]}, "/pair/1", "no value is allowed here"),
        ({"id": 1, "address": {}}, "/address", '"city" is a required property'),
        ({"id": 1, "address": 5}, "/address", '5 is not of type "object"'),
        ({"id": 1, "role": "x"}, "/role", "the value matches none of the schemas in anyOf"),
        ({"id": 1, "~x/y": None}, "/~0x~1y", "the value matches the schema in not"),
        ({"id": 1, "n_a": "x"}, "/n_a", '"x" is not of type "number"'),
        ({"id": 1, "other": 1}, "", "Additional properties are not allowed ('other' was unexpected)"),
    ],
)
def test_a_mismatch_names_its_place_and_reason(value: Any, path: str, message: str) -> None:
    assert mismatch(PERSON, value) == Mismatch(path, message)


def test_data_can_be_a_view_of_a_batch() -> None:
    schema = parsed(PERSON)
    assert schema.mismatch(memoryview(b'xx{"id": 1}')[2:]) is None
    assert schema.mismatch(memoryview(b'xx{"id": 0}')[2:]) == Mismatch(
        "/id", "0 is less than the minimum of 1"
    )


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param(
            {"prefixItems": [{}], "items": False},
            [1, 2],
            Mismatch("/1", "no value is allowed here"),
            id="items",
        ),
        pytest.param(
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"b": 1},
            Mismatch("", "the value has properties that no schema allows"),
            id="unevaluatedProperties",
        ),
        pytest.param(
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
            {"a": 1},
            Mismatch("", "the value does not match the schema in then or else that if selects"),
            id="if",
        ),
        pytest.param(
            {"contains": {"type": "null"}, "minContains": 2},
            [None],
            Mismatch("", "too few or too many items match the schema in contains"),
            id="contains",
        ),
        pytest.param(
            {"dependentSchemas": {"a": {"required": ["b"]}}},
            {"a": 1},
            Mismatch("", '"b" is a required property'),
            id="dependentSchemas",
        ),
    ],
)
def test_newer_keywords_are_checked(schema: Any, value: Any, expected: Mismatch) -> None:
    assert mismatch({"$schema": DRAFT_2020, **schema}, value) == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "invalid JSON: Input data was truncated"),
        (b"{", "invalid JSON: Input data was truncated"),
        (b"{} {}", "invalid JSON: trailing characters (byte 4)"),
        (b"NaN", "invalid JSON: invalid character (byte 0)"),
        (b"Infinity", "invalid JSON: invalid character (byte 0)"),
        (b"\xff", "invalid JSON: invalid character (byte 0)"),
        (b'"\xff"', "invalid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b"1e999", "invalid JSON: Number out of range"),
        (b"1" * 5000, "invalid JSON: Integer value out of range"),
        (b"[" * 101 + b"]" * 101, "the value is nested more than 100 levels"),
        (b"[" * 900 + b"]" * 900, "the value is nested more than 100 levels"),
        (b"[" * 100_000, "the value is nested more than 100 levels"),
        (b'{"a":' * 100_000, "the value is nested more than 100 levels"),
    ],
)
def test_bad_data_is_a_mismatch(data: bytes, message: str) -> None:
    assert parse("{}").mismatch(data) == Mismatch("", message)


def test_deep_and_long_data_within_the_limits_is_valid() -> None:
    schema = parsed({"items": {"$ref": "#"}})
    assert schema.mismatch(b"[" * 100 + b"]" * 100) is None
    assert schema.mismatch(b"[" + b"[]," * 1000 + b"[]]") is None
    assert parse('{"type": "integer"}').mismatch(b"9" * 4000) is None


def test_numbers_are_compared_exactly() -> None:
    schema = parse('{"maximum": 9007199254740993, "multipleOf": 0.1}')
    assert schema.mismatch(b"9007199254740993") is None
    assert schema.mismatch(b"9007199254740994") is not None
    assert schema.mismatch(b"0.3") is None
    assert schema.mismatch(b"0.35") == Mismatch("", "0.35 is not a multiple of 0.1")


def test_numbers_of_schemas_are_compared_with_all_their_digits() -> None:
    digits = "0." + 40 * "1"
    first, same, other = (parse(f'{{"const": {digits}{end}}}') for end in ("1", "10", "2"))
    assert not first.incompatibilities(same)
    assert first.incompatibilities(other)


def test_a_message_is_short_whatever_the_value() -> None:
    found = parse('{"type": "integer"}').mismatch(b'"' + b"x" * 100_000 + b'"')
    assert found is not None
    assert len(found.message) == 300
    assert found.message.endswith('xxx" is not of type "integer"')


def test_the_place_of_a_mismatch_is_found_without_trying_every_combination() -> None:
    both = {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}
    schema = {"type": "object", "properties": {"a": {"oneOf": [both, {"type": "null"}]}}}
    deep = b'{"a":' * 90 + b'""' + b"}" * 90
    assert parsed(schema).mismatch(deep) == Mismatch("/a" * 90, '"" is not of type "object"')


def test_a_schema_whose_references_multiply_is_kept_but_checks_nothing() -> None:
    doubled = {
        f"d{number}": {"allOf": [{"$ref": f"#/definitions/d{number + 1}"}] * 2} for number in range(40)
    }
    schema = parsed({"$ref": "#/definitions/d0", "definitions": {**doubled, "d40": {"type": "null"}}})
    found = schema.mismatch(b"null")
    assert found == Mismatch("", "the schema is too complex to check values: its references multiply")
    assert not schema.incompatibilities(schema)


def test_a_union_that_refers_to_itself_by_name_checks_deep_data() -> None:
    kinds = {
        f"k{number}": {"type": "object", "properties": {"next": {"$ref": "#/definitions/union"}}}
        for number in range(30)
    }
    union = {"anyOf": [{"$ref": f"#/definitions/{name}"} for name in kinds]}
    schema = parsed({"$ref": "#/definitions/union", "definitions": {**kinds, "union": union}})
    assert schema.mismatch(b'{"next":' * 90 + b"{}" + b"}" * 90) is None
    assert schema.mismatch(b'{"next":' * 90 + b"1" + b"}" * 90) is not None


@pytest.mark.parametrize("pattern", [1_000_000 * "[", 500_000 * "[\\", 500_000 * "(["])
def test_a_pattern_with_classes_that_have_no_end_is_scanned_once(pattern: str) -> None:
    schemas: list[dict[str, Any]] = [{"pattern": pattern}, {"patternProperties": {pattern: {}}}]
    for schema in schemas:
        assert len(refusal(msgspec.json.encode(schema).decode())) < 500


@pytest.mark.parametrize("pattern", ["(a+)+$", "^(a|a)*$", r"(\w+\s?)*$"])
def test_patterns_match_in_linear_time(pattern: str) -> None:
    assert parsed({"pattern": f"^{pattern}"}).mismatch(b'"' + b"a" * 500_000 + b'!"') is not None


def test_patterns_with_look_around_take_a_bounded_number_of_steps() -> None:
    schema = parsed({"pattern": r"^(?=a)(a+)+$"})
    assert schema.mismatch(b'"aaa"') is None
    assert schema.mismatch(b'"aaa!"') is not None
    assert schema.mismatch(b'"' + b"a" * 8000 + b'!"') is not None
    found = schema.mismatch(b'"' + b"a" * 9000 + b'"')
    assert found is not None
    assert "limit for patterns with look-around" in found.message


def test_jsonschema_rs_is_loaded_with_the_first_schema_only() -> None:
    code = (
        "import sys; from alpacamq.registry.json_schema.schema import parse;"
        "assert 'jsonschema_rs' not in sys.modules; parse('{}'); assert 'jsonschema_rs' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


KEYWORDS = """
$ref $id $schema $defs $anchor $dynamicRef a additionalProperties allOf anyOf const contains default
definitions dependencies dependentSchemas enum if items maxLength minimum not oneOf pattern
patternProperties prefixItems properties required then type unevaluatedItems
"""
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(["", "#", "a", "string", "#/a", "(", "^a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS.split()),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(ANY_JSON, st.sampled_from([None, DRAFT_4, DRAFT_2019, DRAFT_2020]), ANY_JSON)
def test_any_json_is_a_schema_or_refused(document: Any, draft: str | None, value: Any) -> None:
    if isinstance(document, dict) and draft:
        document = {**document, "$schema": draft}
    try:
        schema = parsed(document)
    except InvalidSchema:
        return
    schema.mismatch(msgspec.json.encode(value))
    assert not schema.incompatibilities(schema)
    assert parse(schema.canonical).canonical == schema.canonical
    assert parse(schema.normalized).normalized == schema.normalized


def test_values_are_decoded_and_encoded_if_they_match() -> None:
    schema = parse('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    assert schema.decode(memoryview(b' {"n": 5}')) == {"n": 5}
    assert schema.encode({"n": 5, "m": [None]}) == b'{"n":5,"m":[null]}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param({"n": "5"}, '/n: "5" is not of type "integer"', id="mismatch"),
        pytest.param({"n": object()}, "not a JSON value: ", id="no JSON"),
    ],
)
def test_values_that_do_not_match_are_not_encoded(value: object, message: str) -> None:
    schema = parse('{"type": "object", "properties": {"n": {"type": "integer"}}}')
    with pytest.raises(InvalidData) as refused:
        schema.encode(value)
    assert str(refused.value).startswith(message)


def test_data_that_does_not_match_is_not_decoded() -> None:
    with pytest.raises(InvalidData) as refused:
        parse('{"type": "integer"}').decode(b"[")
    assert str(refused.value).startswith("invalid JSON: ")
    deep: list[Any] = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    with pytest.raises(InvalidData, match="nested more than"):
        parse("true").encode(deep)
