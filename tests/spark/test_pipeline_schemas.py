"""Columns of JSON values: from a JSON Schema, and from values themselves."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq_spark.pipelines.errors import InvalidPipeline
from alpacamq_spark.pipelines.values import Struct, columns_of, from_json_schema, infer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([{"a": 1}, {"a": 2.5}], "a DOUBLE"),
        ([{"a": 1}, {"b": True}], "a BIGINT, b BOOLEAN"),
        ([{"a": 1}, {"a": "x"}], "a STRING"),
        ([{"a": None}], "a STRING"),
        ([{"a": [1, None, 2]}], "a ARRAY<BIGINT>"),
        ([{"a": []}, {"a": [{"b": 1}]}, {"a": [{"c": "x"}]}], "a ARRAY<STRUCT<b: BIGINT, c: STRING>>"),
        ([{"a": {"b c": 1}}], "a STRUCT<`b c`: BIGINT>"),
        ([{"a": {"b": 1}}, {"a": 2}], "a STRING"),
        ([{"a": 2**63}], "a DOUBLE"),
        (["text", 5, {"a": 1}], "a BIGINT"),
    ],
)
def test_columns_fit_all_values(values: list[object], expected: str) -> None:
    shape = infer(values)
    assert shape is not None
    assert columns_of(shape) == expected


def test_values_that_are_no_objects_have_no_columns() -> None:
    assert infer([1, "x", [2], None]) is None


@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=3), min_size=1, max_size=6))
def test_the_order_of_values_does_not_change_their_columns(values: list[dict[str, object]]) -> None:
    one, other = infer(values), infer(values[::-1])
    assert isinstance(one, Struct)
    assert isinstance(other, Struct)
    assert sorted(one.fields) == sorted(other.fields)


def test_a_json_schema_becomes_columns() -> None:
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "price": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "buyer": {"$ref": "#/$defs/person"},
            "more": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
        },
        "$defs": {"person": {"type": "object", "properties": {"name": {"type": "string"}}}},
    }
    assert columns_of(from_json_schema(json.loads(json.dumps(document)))) == (
        "id BIGINT, at TIMESTAMP, price DOUBLE, tags ARRAY<STRING>, buyer STRUCT<name: STRING>, "
        "more MAP<STRING, BOOLEAN>, any STRING, maybe BIGINT"
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"type": "string"}, "does not describe an object"),
        ({"$ref": "https://elsewhere/schema"}, "only references inside"),
        ({"$ref": "#/$defs/none"}, "not in the schema"),
        ({"$ref": "#"}, "only references inside"),
        ({"properties": {"a": {"$ref": "#/properties/a"}}}, "nested deeper"),
    ],
)
def test_schemas_that_cannot_be_used_are_refused(document: object, message: str) -> None:
    with pytest.raises(InvalidPipeline, match=message):
        from_json_schema(document)
