"""Confluent's compatibility rules for JSON Schema: a change a row, and what it breaks in both directions."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.registry.json_schema.schema import JsonSchema, parse
from alpacamq.registry.schema import Incompatibility

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}


def modern(schema: Schema) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def parsed(schema: Schema) -> JsonSchema:
    return parse(msgspec.json.encode(schema).decode())


TYPES = [
    pytest.param(
        STRING,
        BOOLEAN,
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has a string, the reader a boolean")],
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has a boolean, the reader a string")],
        id="a type replaced",
    ),
    pytest.param(
        INTEGER,
        NUMBER,
        [],
        [Incompatibility("TYPE_NARROWED", "#/", "the writer has numbers, the reader integers")],
        id="integers widened to numbers",
    ),
    pytest.param(
        {},
        STRING,
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has any value, the reader a string")],
        [],
        id="anything narrowed to a type",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": {"a": STRING}},
        [],
        [Incompatibility("TYPE_CHANGED", "#/properties/a", "the writer has a string, the reader no value")],
        id="nothing widened to a type",
    ),
    pytest.param(
        STRING,
        {"type": ["string", "null"]},
        [],
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has anyOf of 2 schemas, the reader a string")],
        id="one type widened to several",
    ),
    pytest.param(
        {"type": ["string", "null", "integer"]},
        {"type": ["string", "null"]},
        [Incompatibility("SUM_TYPE_NARROWED", "#/", "the writer has 3 schemas in anyOf, the reader 2")],
        [],
        id="one type of several removed",
    ),
    pytest.param(
        {**STRING, "connect.type": "bytes"},
        {**NUMBER, "connect.type": "bytes"},
        [],
        [],
        id="two types for Connect's bytes",
    ),
    pytest.param(
        {**STRING, "title": "a", "description": "b", "default": "c", "$id": "http://example.com/a"},
        {**STRING, "title": "x", "description": "y", "default": "z", "$id": "http://example.com/b"},
        [],
        [],
        id="annotations changed",
    ),
]
STRINGS = [
    pytest.param(
        STRING,
        {**STRING, "maxLength": 5},
        [
            Incompatibility(
                "MAX_LENGTH_ADDED", "#/maxLength", "the reader limits maxLength to 5, the writer has no limit"
            )
        ],
        [],
        id="maxLength added",
    ),
    pytest.param(
        {**STRING, "maxLength": 5},
        {**STRING, "maxLength": 6},
        [],
        [
            Incompatibility(
                "MAX_LENGTH_DECREASED",
                "#/maxLength",
                "maxLength is 6 for the writer and only 5 for the reader",
            )
        ],
        id="maxLength increased",
    ),
    pytest.param(
        STRING,
        {**STRING, "minLength": 5},
        [
            Incompatibility(
                "MIN_LENGTH_ADDED", "#/minLength", "the reader requires minLength 5, the writer has no limit"
            )
        ],
        [],
        id="minLength added",
    ),
    pytest.param(
        {**STRING, "minLength": 5},
        {**STRING, "minLength": 6},
        [
            Incompatibility(
                "MIN_LENGTH_INCREASED", "#/minLength", "minLength is 5 for the writer and 6 for the reader"
            )
        ],
        [],
        id="minLength increased",
    ),
    pytest.param(
        STRING,
        {**STRING, "pattern": "^a"},
        [
            Incompatibility(
                "PATTERN_ADDED", "#/pattern", "the reader requires the pattern '^a', the writer has none"
            )
        ],
        [],
        id="pattern added",
    ),
    pytest.param(
        {**STRING, "pattern": "^a"},
        {**STRING, "pattern": "^b"},
        [Incompatibility("PATTERN_CHANGED", "#/pattern", "the writer has the pattern '^a', the reader '^b'")],
        [Incompatibility("PATTERN_CHANGED", "#/pattern", "the writer has the pattern '^b', the reader '^a'")],
        id="pattern changed",
    ),
]
NUMBERS = [
    pytest.param(
        NUMBER,
        {**NUMBER, "maximum": 5},
        [
            Incompatibility(
                "MAXIMUM_ADDED", "#/maximum", "the reader limits maximum to 5, the writer has no limit"
            )
        ],
        [],
        id="maximum added",
    ),
    pytest.param(
        {**NUMBER, "maximum": 5},
        {**NUMBER, "maximum": 5.5},
        [],
        [
            Incompatibility(
                "MAXIMUM_DECREASED", "#/maximum", "maximum is 5.5 for the writer and only 5 for the reader"
            )
        ],
        id="maximum increased",
    ),
    pytest.param(
        NUMBER,
        {**NUMBER, "minimum": 5},
        [
            Incompatibility(
                "MINIMUM_ADDED", "#/minimum", "the reader requires minimum 5, the writer has no limit"
            )
        ],
        [],
        id="minimum added",
    ),
    pytest.param(
        {**NUMBER, "minimum": 5},
        {**NUMBER, "minimum": 6},
        [
            Incompatibility(
                "MINIMUM_INCREASED", "#/minimum", "minimum is 5 for the writer and 6 for the reader"
            )
        ],
        [],
        id="minimum increased",
    ),
    pytest.param(
        NUMBER,
        {**NUMBER, "exclusiveMaximum": 5},
        [
            Incompatibility(
                "EXCLUSIVE_MAXIMUM_ADDED",
                "#/exclusiveMaximum",
                "the reader limits exclusiveMaximum to 5, the writer has no limit",
            )
        ],
        [],
        id="exclusiveMaximum added",
    ),
    pytest.param(
        {**NUMBER, "exclusiveMaximum": 5},
        {**NUMBER, "exclusiveMaximum": 6},
        [],
        [
            Incompatibility(
                "EXCLUSIVE_MAXIMUM_DECREASED",
                "#/exclusiveMaximum",
                "exclusiveMaximum is 6 for the writer and only 5 for the reader",
            )
        ],
        id="exclusiveMaximum increased",
    ),
    pytest.param(
        NUMBER,
        {**NUMBER, "exclusiveMinimum": 5},
        [
            Incompatibility(
                "EXCLUSIVE_MINIMUM_ADDED",
                "#/exclusiveMinimum",
                "the reader requires exclusiveMinimum 5, the writer has no limit",
            )
        ],
        [],
        id="exclusiveMinimum added",
    ),
    pytest.param(
        {**NUMBER, "exclusiveMinimum": 5},
        {**NUMBER, "exclusiveMinimum": 6},
        [
            Incompatibility(
                "EXCLUSIVE_MINIMUM_INCREASED",
                "#/exclusiveMinimum",
                "exclusiveMinimum is 5 for the writer and 6 for the reader",
            )
        ],
        [],
        id="exclusiveMinimum increased",
    ),
    pytest.param(
        {**NUMBER, "$schema": "http://json-schema.org/draft-04/schema#", "maximum": 5},
        {
            **NUMBER,
            "$schema": "http://json-schema.org/draft-04/schema#",
            "maximum": 5,
            "exclusiveMaximum": True,
        },
        [
            Incompatibility(
                "EXCLUSIVE_MAXIMUM_ADDED",
                "#/exclusiveMaximum",
                "the reader limits exclusiveMaximum to 5, the writer has no limit",
            )
        ],
        [],
        id="Draft 4 maximum made exclusive",
    ),
    pytest.param(
        {**NUMBER, "$schema": "http://json-schema.org/draft-04/schema#", "minimum": 5},
        {
            **NUMBER,
            "$schema": "http://json-schema.org/draft-04/schema#",
            "minimum": 5,
            "exclusiveMinimum": True,
        },
        [
            Incompatibility(
                "EXCLUSIVE_MINIMUM_ADDED",
                "#/exclusiveMinimum",
                "the reader requires exclusiveMinimum 5, the writer has no limit",
            )
        ],
        [],
        id="Draft 4 minimum made exclusive",
    ),
    pytest.param(
        NUMBER,
        {**NUMBER, "multipleOf": 5},
        [
            Incompatibility(
                "MULTIPLE_OF_ADDED", "#/multipleOf", "the reader requires multiples of 5, the writer does not"
            )
        ],
        [],
        id="multipleOf added",
    ),
    pytest.param(
        {**NUMBER, "multipleOf": 0.5},
        {**NUMBER, "multipleOf": 10},
        [
            Incompatibility(
                "MULTIPLE_OF_EXPANDED",
                "#/multipleOf",
                "the writer has multiples of 0.5, the reader requires multiples of 10",
            )
        ],
        [],
        id="multipleOf expanded",
    ),
    pytest.param(
        {**NUMBER, "multipleOf": 4},
        {**NUMBER, "multipleOf": 6},
        [
            Incompatibility(
                "MULTIPLE_OF_CHANGED",
                "#/multipleOf",
                "the writer has multiples of 4, the reader requires multiples of 6",
            )
        ],
        [
            Incompatibility(
                "MULTIPLE_OF_CHANGED",
                "#/multipleOf",
                "the writer has multiples of 6, the reader requires multiples of 4",
            )
        ],
        id="multipleOf changed",
    ),
    pytest.param(
        {**NUMBER, "multipleOf": 1}, {**NUMBER, "multipleOf": 1.0}, [], [], id="multipleOf of the same value"
    ),
]
VALUES = [
    pytest.param(
        {"enum": ["a"]},
        {"enum": ["a", "b"]},
        [],
        [Incompatibility("ENUM_ARRAY_NARROWED", "#/enum", 'the reader lacks "b"')],
        id="enum extended",
    ),
    pytest.param(
        {"enum": ["a", "b"]},
        {"enum": ["b", "c"]},
        [Incompatibility("ENUM_ARRAY_CHANGED", "#/enum", 'the reader lacks "a"')],
        [Incompatibility("ENUM_ARRAY_CHANGED", "#/enum", 'the reader lacks "c"')],
        id="enum changed",
    ),
    pytest.param(
        {"enum": ["a", 1, {"x": 1, "y": 2}]},
        {"enum": [{"y": 2, "x": 1.0}, 1.0, "a"]},
        [],
        [],
        id="enum in another order",
    ),
    pytest.param(
        {**STRING, "enum": ["a", "b"]},
        {**STRING, "enum": ["a"]},
        [
            Incompatibility(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                "#/",
                'nothing in the reader\'s allOf accepts an enumeration: the reader lacks "b"',
            )
        ],
        [],
        id="enum with a type narrowed",
    ),
    pytest.param(
        {"const": "a"},
        {"const": "b"},
        [Incompatibility("ENUM_ARRAY_CHANGED", "#/const", 'the writer writes "a", the reader accepts "b"')],
        [Incompatibility("ENUM_ARRAY_CHANGED", "#/const", 'the writer writes "b", the reader accepts "a"')],
        id="const changed",
    ),
    pytest.param(
        {"const": "a"},
        {"enum": ["a"]},
        [Incompatibility("TYPE_CHANGED", "#/", 'the writer has the constant "a", the reader an enumeration')],
        [Incompatibility("TYPE_CHANGED", "#/", 'the writer has an enumeration, the reader the constant "a"')],
        id="const replaced by enum",
    ),
]
PROPERTIES = [
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": STRING}},
        [
            Incompatibility(
                "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the writer accepts further properties and may have written anything as 'a'",
            )
        ],
        [],
        id="optional property added to an open model",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        [
            Incompatibility(
                "REQUIRED_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the writer accepts further properties and may have written anything as 'a'",
            )
        ],
        [],
        id="required property added to an open model",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {**STRING, "default": ""}}, "required": ["a"]},
        [
            Incompatibility(
                "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the writer accepts further properties and may have written anything as 'a'",
            )
        ],
        [],
        id="required property with default added to an open model",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"a": {}}},
        [],
        [],
        id="property of any value added to an open model",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "properties": {"a": STRING}, "additionalProperties": False},
        [],
        [
            Incompatibility(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/properties/a",
                "the reader lacks 'a', and no schema of further properties covers it",
            )
        ],
        id="optional property added to a closed model",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "properties": {"a": STRING}, "required": ["a"], "additionalProperties": False},
        [
            Incompatibility(
                "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
                "#/properties/a",
                "the reader requires 'a' and has no default; the writer does not know it",
            )
        ],
        [
            Incompatibility(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/properties/a",
                "the reader lacks 'a', and no schema of further properties covers it",
            )
        ],
        id="required property added to a closed model",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": False},
        {
            "type": "object",
            "properties": {"a": {**STRING, "default": ""}},
            "required": ["a"],
            "additionalProperties": False,
        },
        [],
        [
            Incompatibility(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/properties/a",
                "the reader lacks 'a', and no schema of further properties covers it",
            )
        ],
        id="required property with default added to a closed model",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": False}, "additionalProperties": False},
        {"type": "object", "properties": {}, "additionalProperties": False},
        [],
        [],
        id="forbidden property removed from a closed model",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": STRING},
        {"type": "object", "properties": {"a": STRING}, "additionalProperties": STRING},
        [],
        [],
        id="property covered by additionalProperties",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": STRING},
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING},
        [
            Incompatibility(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the writer's schema for further properties allows other values of 'a'",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a", "the writer has a string, the reader an integer"
            ),
        ],
        [
            Incompatibility(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the reader lacks 'a', and its schema for further properties does not accept it",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a", "the writer has an integer, the reader a string"
            ),
        ],
        id="property not covered by additionalProperties",
    ),
    pytest.param(
        {
            "type": "object",
            "properties": {},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"abc": STRING},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        [],
        [],
        id="property covered by patternProperties",
    ),
    pytest.param(
        {
            "type": "object",
            "properties": {},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"abc": INTEGER},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        [
            Incompatibility(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/abc",
                "the writer's schema for further properties allows other values of 'abc'",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/abc", "the writer has a string, the reader an integer"
            ),
        ],
        [
            Incompatibility(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/abc",
                "the reader lacks 'abc', and its schema for further properties does not accept it",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/abc", "the writer has an integer, the reader a string"
            ),
        ],
        id="property not covered by patternProperties",
    ),
    pytest.param(
        {
            "type": "object",
            "properties": {},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"b": INTEGER},
            "patternProperties": {"^a": STRING},
            "additionalProperties": False,
        },
        [],
        [
            Incompatibility(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/properties/b",
                "the reader lacks 'b', and no schema of further properties covers it",
            )
        ],
        id="property outside patternProperties",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "patternProperties": {"^a": STRING}},
        {"type": "object", "properties": {"b": INTEGER}, "patternProperties": {"^a": STRING}},
        [],
        [
            Incompatibility(
                "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/properties/b",
                "the reader lacks 'b', and no schema of further properties covers it",
            )
        ],
        id="property added beside patternProperties",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}, "unevaluatedProperties": STRING}),
        modern({"type": "object", "properties": {"a": STRING}, "unevaluatedProperties": STRING}),
        [],
        [],
        id="property covered by unevaluatedProperties",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}, "unevaluatedProperties": STRING}),
        modern({"type": "object", "properties": {"a": INTEGER}, "unevaluatedProperties": STRING}),
        [
            Incompatibility(
                "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the writer's schema for further properties allows other values of 'a'",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a", "the writer has a string, the reader an integer"
            ),
        ],
        [
            Incompatibility(
                "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/properties/a",
                "the reader lacks 'a', and its schema for further properties does not accept it",
            ),
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a", "the writer has an integer, the reader a string"
            ),
        ],
        id="property not covered by unevaluatedProperties",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": STRING}}}},
        {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": INTEGER}}}},
        [
            Incompatibility(
                "TYPE_CHANGED",
                "#/properties/a/properties/b",
                "the writer has a string, the reader an integer",
            )
        ],
        [
            Incompatibility(
                "TYPE_CHANGED",
                "#/properties/a/properties/b",
                "the writer has an integer, the reader a string",
            )
        ],
        id="a property's type replaced",
    ),
    pytest.param(
        {"type": "object", "properties": {"a/b": STRING}},
        {"type": "object", "properties": {"a/b": INTEGER}},
        [
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a~1b", "the writer has a string, the reader an integer"
            )
        ],
        [
            Incompatibility(
                "TYPE_CHANGED", "#/properties/a~1b", "the writer has an integer, the reader a string"
            )
        ],
        id="a property's name with a slash",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": STRING}},
        {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
        [
            Incompatibility(
                "REQUIRED_ATTRIBUTE_ADDED",
                "#/required/a",
                "the reader requires 'a' and has no default; for the writer it is optional",
            )
        ],
        [],
        id="property required",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": {**STRING, "default": ""}}},
        {"type": "object", "properties": {"a": {**STRING, "default": ""}}, "required": ["a"]},
        [],
        [],
        id="property with default required",
    ),
]
OBJECTS = [
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "properties": {}},
        [],
        [
            Incompatibility(
                "ADDITIONAL_PROPERTIES_REMOVED",
                "#/additionalProperties",
                "the reader accepts no further properties, the writer does",
            )
        ],
        id="additionalProperties allowed",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "additionalProperties": STRING},
        [
            Incompatibility(
                "ADDITIONAL_PROPERTIES_NARROWED",
                "#/additionalProperties",
                "the reader has a schema for further properties, the writer has none",
            )
        ],
        [],
        id="additionalProperties given a schema",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": STRING},
        {"type": "object", "properties": {}, "additionalProperties": INTEGER},
        [
            Incompatibility(
                "TYPE_CHANGED", "#/additionalProperties", "the writer has a string, the reader an integer"
            )
        ],
        [
            Incompatibility(
                "TYPE_CHANGED", "#/additionalProperties", "the writer has an integer, the reader a string"
            )
        ],
        id="additionalProperties of another schema",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "properties": {}, "additionalProperties": STRING},
        [],
        [
            Incompatibility(
                "ADDITIONAL_PROPERTIES_REMOVED",
                "#/additionalProperties",
                "the reader accepts no further properties, the writer does",
            )
        ],
        id="additionalProperties from none to some",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}, "unevaluatedProperties": False}),
        modern({"type": "object", "properties": {}}),
        [],
        [
            Incompatibility(
                "UNEVALUATED_PROPERTIES_REMOVED",
                "#/unevaluatedProperties",
                "the reader accepts no properties that no schema evaluates, the writer does",
            )
        ],
        id="unevaluatedProperties allowed",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}}),
        modern({"type": "object", "properties": {}, "unevaluatedProperties": STRING}),
        [
            Incompatibility(
                "UNEVALUATED_PROPERTIES_NARROWED",
                "#/unevaluatedProperties",
                "the reader has a schema for properties that no schema evaluates, the writer has none",
            )
        ],
        [],
        id="unevaluatedProperties given a schema",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}, "unevaluatedProperties": STRING}),
        modern({"type": "object", "properties": {}, "unevaluatedProperties": INTEGER}),
        [
            Incompatibility(
                "TYPE_CHANGED", "#/unevaluatedProperties", "the writer has a string, the reader an integer"
            )
        ],
        [
            Incompatibility(
                "TYPE_CHANGED", "#/unevaluatedProperties", "the writer has an integer, the reader a string"
            )
        ],
        id="unevaluatedProperties of another schema",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "maxProperties": 5},
        [
            Incompatibility(
                "MAX_PROPERTIES_ADDED",
                "#/maxProperties",
                "the reader limits maxProperties to 5, the writer has no limit",
            )
        ],
        [],
        id="maxProperties added",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "maxProperties": 5},
        {"type": "object", "properties": {}, "maxProperties": 6},
        [],
        [
            Incompatibility(
                "MAX_PROPERTIES_DECREASED",
                "#/maxProperties",
                "maxProperties is 6 for the writer and only 5 for the reader",
            )
        ],
        id="maxProperties increased",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "minProperties": 5},
        [
            Incompatibility(
                "MIN_PROPERTIES_ADDED",
                "#/minProperties",
                "the reader requires minProperties 5, the writer has no limit",
            )
        ],
        [],
        id="minProperties added",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "minProperties": 5},
        {"type": "object", "properties": {}, "minProperties": 6},
        [
            Incompatibility(
                "MIN_PROPERTIES_INCREASED",
                "#/minProperties",
                "minProperties is 5 for the writer and 6 for the reader",
            )
        ],
        [],
        id="minProperties increased",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "dependencies": {"a": ["b"]}},
        [
            Incompatibility(
                "DEPENDENCY_ARRAY_ADDED",
                "#/dependencies/a",
                "with 'a' the reader requires further properties: b",
            )
        ],
        [],
        id="required dependency added",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "dependencies": {"a": ["b"]}},
        {"type": "object", "properties": {}, "dependencies": {"a": ["b", "c"]}},
        [
            Incompatibility(
                "DEPENDENCY_ARRAY_EXTENDED",
                "#/dependencies/a",
                "with 'a' the reader requires further properties: c",
            )
        ],
        [],
        id="required dependency extended",
    ),
    pytest.param(
        {"type": "object", "properties": {}, "dependencies": {"a": ["b"]}},
        {"type": "object", "properties": {}, "dependencies": {"a": ["c"]}},
        [
            Incompatibility(
                "DEPENDENCY_ARRAY_CHANGED",
                "#/dependencies/a",
                "with 'a' the reader requires further properties: c",
            )
        ],
        [
            Incompatibility(
                "DEPENDENCY_ARRAY_CHANGED",
                "#/dependencies/a",
                "with 'a' the reader requires further properties: b",
            )
        ],
        id="required dependency changed",
    ),
    pytest.param(
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "dependencies": {"a": {"required": ["b"]}}},
        [
            Incompatibility(
                "DEPENDENCY_SCHEMA_ADDED",
                "#/dependencies/a",
                "with 'a' the reader requires a further schema, the writer does not",
            )
        ],
        [],
        id="schema dependency added",
    ),
    pytest.param(
        {
            "type": "object",
            "properties": {},
            "dependencies": {"a": {"type": "object", "properties": {"b": NUMBER}}},
        },
        {
            "type": "object",
            "properties": {},
            "dependencies": {"a": {"type": "object", "properties": {"b": INTEGER}}},
        },
        [
            Incompatibility(
                "TYPE_NARROWED",
                "#/dependencies/a/properties/b",
                "the writer has numbers, the reader integers",
            )
        ],
        [],
        id="schema dependency narrowed",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}, "dependentRequired": {"a": ["b"]}}),
        modern({"type": "object", "properties": {}, "dependentRequired": {"a": ["b", "c"]}}),
        [
            Incompatibility(
                "DEPENDENCY_ARRAY_EXTENDED",
                "#/dependencies/a",
                "with 'a' the reader requires further properties: c",
            )
        ],
        [],
        id="dependentRequired extended",
    ),
    pytest.param(
        modern({"type": "object", "properties": {}}),
        modern({"type": "object", "properties": {}, "dependentSchemas": {"a": {"required": ["b"]}}}),
        [
            Incompatibility(
                "DEPENDENCY_SCHEMA_ADDED",
                "#/dependencies/a",
                "with 'a' the reader requires a further schema, the writer does not",
            )
        ],
        [],
        id="dependentSchemas added",
    ),
]
ARRAYS = [
    pytest.param(
        {"type": "array"},
        {"type": "array", "items": STRING},
        [
            Incompatibility(
                "SCHEMA_ADDED", "#/items", "the reader has a schema for items, the writer has none"
            )
        ],
        [],
        id="schema of items added",
    ),
    pytest.param(
        {"type": "array", "items": NUMBER},
        {"type": "array", "items": INTEGER},
        [Incompatibility("TYPE_NARROWED", "#/items", "the writer has numbers, the reader integers")],
        [],
        id="schema of items narrowed",
    ),
    pytest.param(
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [STRING, INTEGER]},
        [
            Incompatibility(
                "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
                "#/items/1",
                "the writer accepts further items and may have written anything as item 1",
            )
        ],
        [],
        id="item added to an open model",
    ),
    pytest.param(
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [STRING, {}]},
        [],
        [],
        id="item of any value added to an open model",
    ),
    pytest.param(
        {"type": "array", "items": [STRING], "additionalItems": False},
        {"type": "array", "items": [STRING, INTEGER], "additionalItems": False},
        [],
        [
            Incompatibility(
                "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL",
                "#/items/1",
                "the reader lacks item 1 and accepts no further items",
            )
        ],
        id="item added to a closed model",
    ),
    pytest.param(
        {"type": "array", "items": [STRING, False], "additionalItems": False},
        {"type": "array", "items": [STRING], "additionalItems": False},
        [],
        [],
        id="forbidden item removed from a closed model",
    ),
    pytest.param(
        {"type": "array", "items": [STRING], "additionalItems": INTEGER},
        {"type": "array", "items": [STRING, INTEGER], "additionalItems": INTEGER},
        [],
        [],
        id="item covered by additionalItems",
    ),
    pytest.param(
        {"type": "array", "items": [STRING], "additionalItems": INTEGER},
        {"type": "array", "items": [STRING, BOOLEAN], "additionalItems": INTEGER},
        [
            Incompatibility(
                "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/items/1",
                "the writer's schema for further items allows other values of item 1",
            ),
            Incompatibility("TYPE_CHANGED", "#/items/1", "the writer has an integer, the reader a boolean"),
        ],
        [
            Incompatibility(
                "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
                "#/items/1",
                "the reader lacks item 1, and its schema for further items does not accept it",
            ),
            Incompatibility("TYPE_CHANGED", "#/items/1", "the writer has a boolean, the reader an integer"),
        ],
        id="item not covered by additionalItems",
    ),
    pytest.param(
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [INTEGER]},
        [Incompatibility("TYPE_CHANGED", "#/items/0", "the writer has a string, the reader an integer")],
        [Incompatibility("TYPE_CHANGED", "#/items/0", "the writer has an integer, the reader a string")],
        id="item of another type",
    ),
    pytest.param(
        {"type": "array", "items": [STRING], "additionalItems": False},
        {"type": "array", "items": [STRING]},
        [],
        [
            Incompatibility(
                "ADDITIONAL_ITEMS_REMOVED",
                "#/additionalItems",
                "the reader accepts no further items, the writer does",
            )
        ],
        id="additionalItems allowed",
    ),
    pytest.param(
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [STRING], "additionalItems": INTEGER},
        [
            Incompatibility(
                "ADDITIONAL_ITEMS_NARROWED",
                "#/additionalItems",
                "the reader has a schema for further items, the writer has none",
            )
        ],
        [],
        id="additionalItems given a schema",
    ),
    pytest.param(
        modern({"type": "array", "prefixItems": [STRING]}),
        modern({"type": "array", "prefixItems": [STRING, INTEGER]}),
        [
            Incompatibility(
                "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
                "#/items/1",
                "the writer accepts further items and may have written anything as item 1",
            )
        ],
        [],
        id="prefixItems added to an open model",
    ),
    pytest.param(
        modern({"type": "array", "prefixItems": [STRING], "items": False}),
        modern({"type": "array", "prefixItems": [STRING]}),
        [],
        [
            Incompatibility(
                "ADDITIONAL_ITEMS_REMOVED",
                "#/additionalItems",
                "the reader accepts no further items, the writer does",
            )
        ],
        id="items after prefixItems allowed",
    ),
    pytest.param(
        modern({"type": "array", "unevaluatedItems": False}),
        modern({"type": "array"}),
        [],
        [
            Incompatibility(
                "UNEVALUATED_ITEMS_REMOVED",
                "#/unevaluatedItems",
                "the reader accepts no items that no schema evaluates, the writer does",
            )
        ],
        id="unevaluatedItems allowed",
    ),
    pytest.param(
        modern({"type": "array"}),
        modern({"type": "array", "unevaluatedItems": STRING}),
        [
            Incompatibility(
                "UNEVALUATED_ITEMS_NARROWED",
                "#/unevaluatedItems",
                "the reader has a schema for items that no schema evaluates, the writer has none",
            )
        ],
        [],
        id="unevaluatedItems given a schema",
    ),
    pytest.param(
        {"type": "array"},
        {"type": "array", "maxItems": 5},
        [
            Incompatibility(
                "MAX_ITEMS_ADDED", "#/maxItems", "the reader limits maxItems to 5, the writer has no limit"
            )
        ],
        [],
        id="maxItems added",
    ),
    pytest.param(
        {"type": "array", "maxItems": 5},
        {"type": "array", "maxItems": 6},
        [],
        [
            Incompatibility(
                "MAX_ITEMS_DECREASED", "#/maxItems", "maxItems is 6 for the writer and only 5 for the reader"
            )
        ],
        id="maxItems increased",
    ),
    pytest.param(
        {"type": "array"},
        {"type": "array", "minItems": 5},
        [
            Incompatibility(
                "MIN_ITEMS_ADDED", "#/minItems", "the reader requires minItems 5, the writer has no limit"
            )
        ],
        [],
        id="minItems added",
    ),
    pytest.param(
        {"type": "array", "minItems": 5},
        {"type": "array", "minItems": 6},
        [
            Incompatibility(
                "MIN_ITEMS_INCREASED", "#/minItems", "minItems is 5 for the writer and 6 for the reader"
            )
        ],
        [],
        id="minItems increased",
    ),
    pytest.param(
        {"type": "array"},
        {"type": "array", "uniqueItems": True},
        [
            Incompatibility(
                "UNIQUE_ITEMS_ADDED", "#/uniqueItems", "the reader requires unique items, the writer does not"
            )
        ],
        [],
        id="uniqueItems added",
    ),
    pytest.param(
        modern({"type": "array", "contains": INTEGER}),
        modern({"type": "array", "contains": INTEGER, "minContains": 2}),
        [
            Incompatibility(
                "MIN_CONTAINS_INCREASED",
                "#/minContains",
                "minContains is 1 for the writer and 2 for the reader",
            )
        ],
        [],
        id="minContains increased",
    ),
    pytest.param(
        modern({"type": "array", "contains": INTEGER}),
        modern({"type": "array", "contains": INTEGER, "maxContains": 2}),
        [
            Incompatibility(
                "MAX_CONTAINS_ADDED",
                "#/maxContains",
                "the reader limits maxContains to 2, the writer has no limit",
            )
        ],
        [],
        id="maxContains added",
    ),
    pytest.param(
        modern({"type": "array", "contains": INTEGER, "maxContains": 2}),
        modern({"type": "array", "contains": INTEGER, "maxContains": 3}),
        [],
        [
            Incompatibility(
                "MAX_CONTAINS_DECREASED",
                "#/maxContains",
                "maxContains is 3 for the writer and only 2 for the reader",
            )
        ],
        id="maxContains increased",
    ),
]
COMBINATIONS = [
    pytest.param(
        {"oneOf": [STRING, INTEGER]},
        {"oneOf": [STRING, INTEGER, BOOLEAN]},
        [],
        [Incompatibility("SUM_TYPE_NARROWED", "#/", "the writer has 3 schemas in oneOf, the reader 2")],
        id="alternative added",
    ),
    pytest.param(
        {"anyOf": [STRING, STRING, INTEGER]},
        {"anyOf": [INTEGER, STRING]},
        [],
        [],
        id="equal alternatives count once",
    ),
    pytest.param(
        {"oneOf": [STRING, INTEGER]}, {"oneOf": [INTEGER, STRING]}, [], [], id="alternatives in another order"
    ),
    pytest.param(
        {"oneOf": [STRING, INTEGER]},
        {"oneOf": [STRING, BOOLEAN]},
        [
            Incompatibility(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                "#/",
                "nothing in the reader's oneOf accepts an integer (number 2 of the writer's)",
            )
        ],
        [
            Incompatibility(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                "#/",
                "nothing in the reader's oneOf accepts a boolean (number 2 of the writer's)",
            )
        ],
        id="alternative replaced",
    ),
    pytest.param(
        {"oneOf": [STRING, INTEGER]},
        {"oneOf": [STRING, NUMBER]},
        [],
        [
            Incompatibility(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                "#/",
                "nothing in the reader's oneOf accepts a number: the writer has numbers, the reader integers",
            )
        ],
        id="alternative widened",
    ),
    pytest.param(
        {"oneOf": [{**INTEGER, "title": "a"}, {**NUMBER, "title": "b"}]},
        {"oneOf": [{**NUMBER, "title": "c"}, {**INTEGER, "title": "d"}]},
        [],
        [],
        id="alternatives that fit in one way only",
    ),
    pytest.param(
        STRING,
        {"oneOf": [STRING, INTEGER]},
        [],
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has oneOf of 2 schemas, the reader a string")],
        id="a type becomes an alternative",
    ),
    pytest.param(STRING, {"oneOf": [STRING]}, [], [], id="a type becomes the only alternative"),
    pytest.param(
        {"allOf": [{"type": "object", "properties": {"a": STRING}}]},
        {
            "allOf": [
                {"type": "object", "properties": {"a": STRING}},
                {"type": "object", "properties": {"b": STRING}},
            ]
        },
        [Incompatibility("PRODUCT_TYPE_EXTENDED", "#/", "the writer has 1 schemas in allOf, the reader 2")],
        [],
        id="condition added",
    ),
    pytest.param(
        STRING,
        {"allOf": [STRING, {"maxLength": 3}]},
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has a string, the reader allOf of 2 schemas")],
        [],
        id="a type becomes a condition",
    ),
    pytest.param(
        {"oneOf": [STRING, INTEGER]},
        {"anyOf": [STRING, INTEGER]},
        [],
        [Incompatibility("COMBINED_TYPE_CHANGED", "#/", "the writer has anyOf, the reader oneOf")],
        id="oneOf becomes anyOf",
    ),
    pytest.param(
        {"oneOf": [STRING, INTEGER]},
        {"allOf": [STRING, INTEGER]},
        [Incompatibility("COMBINED_TYPE_CHANGED", "#/", "the writer has oneOf, the reader allOf")],
        [Incompatibility("COMBINED_TYPE_CHANGED", "#/", "the writer has allOf, the reader oneOf")],
        id="oneOf becomes allOf",
    ),
    pytest.param(
        {"allOf": [STRING]},
        {"oneOf": [STRING, INTEGER]},
        [],
        [Incompatibility("COMBINED_TYPE_CHANGED", "#/", "the writer has oneOf, the reader allOf")],
        id="the only member of allOf becomes an alternative",
    ),
    pytest.param(
        {"not": NUMBER},
        {"not": INTEGER},
        [],
        [
            Incompatibility(
                "NOT_TYPE_EXTENDED", "#/not", "the reader's `not` excludes values that the writer's does not"
            )
        ],
        id="negation narrowed",
    ),
]
REFERENCES = [
    pytest.param(
        {"type": "object", "properties": {"a": STRING}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": STRING}},
        [],
        [],
        id="a schema moves to a definition",
    ),
    pytest.param(
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": STRING}},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/x"}}, "definitions": {"x": INTEGER}},
        [Incompatibility("TYPE_CHANGED", "#/properties/a", "the writer has a string, the reader an integer")],
        [Incompatibility("TYPE_CHANGED", "#/properties/a", "the writer has an integer, the reader a string")],
        id="a definition's type replaced",
    ),
    pytest.param(
        {"type": "object", "properties": {"next": {"$ref": "#"}, "a": STRING}},
        {"type": "object", "properties": {"next": {"$ref": "#"}, "a": STRING}},
        [],
        [],
        id="a recursive schema unchanged",
    ),
    pytest.param(
        {"type": "object", "properties": {"next": {"$ref": "#"}, "a": NUMBER}},
        {"type": "object", "properties": {"next": {"$ref": "#"}, "a": INTEGER}},
        [Incompatibility("TYPE_NARROWED", "#/properties/a", "the writer has numbers, the reader integers")],
        [],
        id="a recursive schema narrowed",
    ),
    pytest.param(
        modern({"$ref": "#/$defs/x", "$defs": {"x": STRING}}),
        modern({"$ref": "#/$defs/x", "maxLength": 3, "$defs": {"x": STRING}}),
        [Incompatibility("TYPE_CHANGED", "#/", "the writer has a string, the reader allOf of 2 schemas")],
        [],
        id="a reference with keywords beside it",
    ),
    pytest.param(
        {
            "type": "object",
            "properties": {"list": {"oneOf": [STRING, {"$ref": "#/definitions/node"}]}},
            "definitions": {
                "node": {
                    "type": "object",
                    "properties": {
                        "value": NUMBER,
                        "next": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/node"}]},
                    },
                }
            },
        },
        {
            "type": "object",
            "properties": {"list": {"oneOf": [STRING, {"$ref": "#/definitions/node"}]}},
            "definitions": {
                "node": {
                    "type": "object",
                    "properties": {
                        "value": INTEGER,
                        "next": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/node"}]},
                    },
                }
            },
        },
        [
            Incompatibility(
                "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
                "#/properties/list",
                "nothing in the reader's oneOf accepts an object (number 2 of the writer's)",
            )
        ],
        [],
        id="a recursive alternative narrowed",
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "backward", "forward"),
    [*TYPES, *STRINGS, *NUMBERS, *VALUES, *PROPERTIES, *OBJECTS, *ARRAYS, *COMBINATIONS, *REFERENCES],
)
def test_a_change_breaks_these_rules_in_either_direction(
    before: Schema, after: Schema, backward: list[Incompatibility], forward: list[Incompatibility]
) -> None:
    old, new = parsed(before), parsed(after)
    assert list(new.incompatibilities(old)) == backward
    assert list(old.incompatibilities(new)) == forward
    assert not old.incompatibilities(parsed(before))
    assert not new.incompatibilities(parsed(after))


def test_schemas_of_different_drafts_are_compared() -> None:
    draft_4 = parsed(
        {"$schema": "http://json-schema.org/draft-04/schema#", "type": "array", "items": [STRING]}
    )
    newest = parsed(modern({"type": "array", "prefixItems": [STRING, INTEGER]}))
    assert [each.rule for each in newest.incompatibilities(draft_4)] == ["ITEM_ADDED_TO_OPEN_CONTENT_MODEL"]
    assert not draft_4.incompatibilities(newest)


def test_a_reference_to_another_meta_schema_is_another_type() -> None:
    one = parsed(modern({"$ref": "https://json-schema.org/draft/2020-12/schema"}))
    other = parsed(modern({"$ref": "https://json-schema.org/draft/2020-12/meta/core"}))
    assert [each.rule for each in one.incompatibilities(other)] == ["TYPE_CHANGED"]


def test_what_references_share_is_reported_once() -> None:
    def schema(kind: Schema) -> Schema:
        reference = {"$ref": "#/definitions/x"}
        return {"type": "object", "properties": {"a": reference, "b": reference}, "definitions": {"x": kind}}

    found = parsed(schema(INTEGER)).incompatibilities(parsed(schema(STRING)))
    assert [(each.rule, each.path) for each in found] == [("TYPE_CHANGED", "#/properties/a")]


def test_at_most_a_hundred_incompatibilities_are_reported() -> None:
    names = [f"p{number}" for number in range(150)]
    writer = parsed({"type": "object", "properties": dict.fromkeys(names, STRING)})
    reader = parsed({"type": "object", "properties": dict.fromkeys(names, INTEGER)})
    assert len(reader.incompatibilities(writer)) == 100


def test_unions_of_hundreds_are_compared_whatever_their_order() -> None:
    members = [{"const": f"event-{number}"} for number in range(500)]
    writer, reader = parsed({"oneOf": members}), parsed({"oneOf": [{"const": "new"}, *reversed(members)]})
    assert not reader.incompatibilities(writer)


def test_wide_schemas_are_compared() -> None:
    properties = {f"p{number}": {**STRING, "enum": ["a"]} for number in range(8000)}
    schema = parsed({"type": "object", "properties": properties})
    assert not schema.incompatibilities(schema)


def test_a_comparison_that_would_take_too_long_is_refused() -> None:
    writer = parsed({"oneOf": [{"const": f"a{number}"} for number in range(150)]})
    reader = parsed({"oneOf": [{"const": f"b{number}"} for number in range(150)]})
    assert [each.rule for each in reader.incompatibilities(writer)] == ["SCHEMA_TOO_COMPLEX"]


def test_long_chains_and_webs_of_references_are_compared_without_recursion() -> None:
    def schema(end: Schema, count: int = 900) -> Schema:
        nodes = {
            f"n{number}": {
                "type": "object",
                "properties": {
                    "next": {"$ref": f"#/definitions/n{number + 1}"},
                    "other": {"$ref": f"#/definitions/n{number // 2}"},
                },
            }
            for number in range(count)
        }
        return {"$ref": "#/definitions/n0", "definitions": {**nodes, f"n{count}": end}}

    reader = parsed(schema(INTEGER))
    assert not reader.incompatibilities(parsed(schema(INTEGER)))
    (found,) = reader.incompatibilities(parsed(schema(NUMBER)))
    assert (found.rule, found.path.count("next")) == ("TYPE_NARROWED", 900)


NAMES = ["a", "b", "c"]
LIMITS = st.none() | st.integers(0, 3)


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> Schema:
    """Generate schemas of the keywords whose rules promise that a reader accepts what a writer accepts."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "anything"]
    kind = draw(st.sampled_from([*kinds, "array", "object", "object", "anyOf"] if depth else kinds))
    match kind:
        case "enum":
            return {"enum": draw(st.lists(st.sampled_from(["x", "y", "z", 1]), min_size=1, unique=True))}
        case "anything":
            return {}
        case "string":
            return with_limits(kind, minLength=draw(LIMITS), maxLength=draw(LIMITS))
        case "integer" | "number":
            return with_limits(kind, minimum=draw(LIMITS), maximum=draw(LIMITS))
        case "array":
            items = draw(st.none() | schemas(depth - 1))
            return with_limits(kind, items=items, minItems=draw(LIMITS), maxItems=draw(LIMITS))
        case "anyOf":
            return {"anyOf": draw(st.lists(schemas(depth - 1), min_size=1, max_size=3))}
        case "object":
            names = draw(st.lists(st.sampled_from(NAMES), unique=True))
            properties = {name: draw(schemas(depth - 1)) for name in names}
            required = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
            rest = draw(st.none() | st.just(False) | schemas(depth - 1))
            return with_limits(kind, properties=properties, required=required, additionalProperties=rest)
        case _:
            return {"type": kind}


def with_limits(kind: str, **keywords: Any) -> Schema:
    return {"type": kind, **{name: value for name, value in keywords.items() if value is not None}}


@st.composite
def evolved(draw: st.DrawFn, schema: Schema, depth: int = 2) -> Schema:
    """Change a schema in a few places, or not at all."""
    match draw(st.sampled_from(["keep", "keep", "keep", "replace", "drop", "add"])):
        case "replace":
            return draw(schemas(depth))
        case "drop" if len(schema) > 1:
            dropped = draw(st.sampled_from(sorted(schema.keys() - {"type", "enum", "anyOf"}) or ["none"]))
            schema = {keyword: value for keyword, value in schema.items() if keyword != dropped}
        case "add" if "properties" in schema:
            added = {draw(st.sampled_from(NAMES)): draw(schemas(depth - 1 if depth else 0))}
            schema = {**schema, "properties": {**added, **schema["properties"]}}
        case "add" if "enum" not in schema:
            schema = {"anyOf": [schema, draw(schemas(0))]}
        case _:
            pass
    changed = dict(schema)
    if depth and isinstance(changed.get("items"), dict):
        changed["items"] = draw(evolved(changed["items"], depth - 1))
    if depth and "properties" in changed:
        changed["properties"] = {
            name: draw(evolved(each, depth - 1)) for name, each in changed["properties"].items()
        }
    if not set(changed.get("required", [])) <= changed.get("properties", {}).keys():
        del changed["required"]
    return changed


VALUES_OF_ANY_KIND = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 4) | st.sampled_from([0.5, 2.5, "", "x", "y", "z", "xyzx"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*NAMES, "d"]), inner),
    max_leaves=6,
)


@st.composite
def values(draw: st.DrawFn, schema: Schema) -> Any:
    """Generate values that mostly match a schema."""
    if "anyOf" in schema:
        return draw(values(draw(st.sampled_from(schema["anyOf"]))))
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    match schema.get("type"):
        case "string":
            return draw(st.text("xyz", min_size=schema.get("minLength", 0), max_size=4))
        case "integer":
            return draw(st.integers(schema.get("minimum", -1), 4))
        case "number":
            return draw(st.integers(schema.get("minimum", -1), 4)) + draw(st.sampled_from([0, 0.5]))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
        case "array":
            items = schema.get("items", {})
            return draw(st.lists(values(items), min_size=schema.get("minItems", 0), max_size=4))
        case "object":
            rest = schema.get("additionalProperties", {})
            named = schema.get("properties", {})
            return {
                name: draw(values(named.get(name, rest)))
                for name in [*NAMES, "d"]
                if (name in named or rest is not False)
                and (name in schema.get("required", []) or draw(st.booleans()))
            }
        case _:
            return draw(VALUES_OF_ANY_KIND)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_compatible_reader_accepts_what_a_writer_accepts(data: st.DataObject) -> None:
    writer_schema = data.draw(schemas(), label="writer")
    reader_schema = data.draw(evolved(writer_schema), label="reader")
    writer, reader = parsed(writer_schema), parsed(reader_schema)
    if reader.incompatibilities(writer):
        return
    for value in data.draw(st.lists(values(writer_schema), min_size=1, max_size=5), label="values"):
        encoded = msgspec.json.encode(value)
        if writer.mismatch(encoded) is None:
            assert reader.mismatch(encoded) is None


@settings(max_examples=100, deadline=None)
@given(schemas())
def test_every_schema_reads_its_own_data(schema: Schema) -> None:
    assert not parsed(schema).incompatibilities(parsed(schema))
