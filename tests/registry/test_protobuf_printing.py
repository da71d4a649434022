"""Canonical and normalized texts of Protobuf schemas, and their serialized form."""

import base64
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from alpacamq.registry.protobuf import ProtobufSchema
from alpacamq.registry.protobuf.printing import print_file
from alpacamq.registry.schema import InvalidSchema

from .protobuf_schemas import parse

WRITTEN = """\
syntax = "proto3";
package shop.v1;

import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";

option java_multiple_files = true;
option java_package = "com.shop";
option go_package = "shop";

message Order {
  reserved 20;
  reserved 30 to 40;
  reserved "old";

  option (confluent.message_meta) = {
    doc: "an \\"order\\"",
    tags: [
      "a",
      "b"
    ]
  };

  string id = 1;
  optional int64 cents = 3 [json_name = "price"];
  Kind kind = 2 [
    deprecated = true,
    json_name = "k"
  ];
  .shop.v1.Order.Line first = 4;
  v1.Order.Line second = 5;
  repeated Line lines = 6;
  google.protobuf.Timestamp at = 7;
  map<string, Order.Line> by_name = 8;

  oneof paid {
    bool cash = 10;
    string card = 9;
  }

  message Line {
    string name = 1;
  }
  enum Kind {
    KIND_NONE = 0;
    KIND_ONE = 1 [deprecated = true];
  }
}
message Empty {}
enum Level {
  reserved 7;
  option allow_alias = true;
  LEVEL_NONE = 0;
  LEVEL_HIGH = 2;
  LEVEL_LOW = 1;
  LEVEL_TOP = 2;
}

service Orders {
  rpc Get (Order) returns (stream .shop.v1.Empty) {
    option deprecated = true;
  };
  rpc Put (stream Order) returns (Empty);
}
"""

NORMALIZED = """\
syntax = "proto3";
package shop.v1;

import "confluent/meta.proto";
import "google/protobuf/timestamp.proto";

option go_package = "shop";
option java_multiple_files = true;
option java_package = "com.shop";

message Order {
  reserved 20;
  reserved 30 to 40;
  reserved "old";

  option (confluent.message_meta) = {
    doc: "an \\"order\\"",
    tags: [
      "a",
      "b"
    ]
  };

  string id = 1;
  .shop.v1.Order.Kind kind = 2 [
    deprecated = true,
    json_name = "k"
  ];
  optional int64 cents = 3 [json_name = "price"];
  .shop.v1.Order.Line first = 4;
  .shop.v1.Order.Line second = 5;
  repeated .shop.v1.Order.Line lines = 6;
  .google.protobuf.Timestamp at = 7;
  map<string, .shop.v1.Order.Line> by_name = 8;

  oneof paid {
    string card = 9;
    bool cash = 10;
  }

  message Line {
    string name = 1;
  }
  enum Kind {
    KIND_NONE = 0;
    KIND_ONE = 1 [deprecated = true];
  }
}
message Empty {}
enum Level {
  reserved 7;
  option allow_alias = true;
  LEVEL_NONE = 0;
  LEVEL_LOW = 1;
  LEVEL_HIGH = 2;
  LEVEL_TOP = 2;
}

service Orders {
  rpc Get (.shop.v1.Order) returns (stream .shop.v1.Empty) {
    option deprecated = true;
  };
  rpc Put (stream .shop.v1.Order) returns (.shop.v1.Empty);
}
"""

PROTO2 = """\
syntax = "proto2";
package old;

message A {
  required int32 a = 1 [default = 5];
  optional string b = 2 [default = "x\\"\\n\\000é"];
  optional bytes c = 3 [default = "\\001\\377x"];
  optional float d = 4 [default = inf];
  optional E e = 5 [default = TWO];
  repeated int32 f = 6 [packed = true];

  oneof choice {
    int32 one = 7;

    group Two = 8 {
      optional int32 x = 1;
    }
  }

  repeated group G = 9 {
    optional A again = 1;
  }

  extensions 100 to 199;
  extensions 1000 to max;

  extend A {
    optional int32 inner = 100;
  }

  message N {}
  enum E {
    ONE = 1;
    TWO = 2;
  }
}

extend A {
  repeated string outer = 101;
}
"""

EDITION = """\
edition = "2023";

option features.field_presence = IMPLICIT;

message A {
  reserved 5;
  reserved gone;

  int32 a = 1 [features.field_presence = EXPLICIT];
  B b = 2 [
    deprecated = true,
    features.message_encoding = DELIMITED
  ];

  message B {}
}
"""

CUSTOM = """\
syntax = "proto2";
package opts;

import "google/protobuf/descriptor.proto";

option (opts.level) = HIGH;
option (opts.ratio) = 0.1;
option (opts.raw) = "\\000\\377a";
option (opts.many) = 1;
option (opts.many) = -2;
option (opts.deep) = {
  size: 3,
  inner: {
    size: 4,
    [opts.more]: true
  },
  on: true
};

message Deep {
  optional int32 size = 1;
  optional Deep inner = 2;
  optional bool on = 3;

  extensions 10 to 20;
}
enum Level {
  LOW = 0;
  HIGH = 1;
}

extend google.protobuf.FileOptions {
  optional Level level = 50000;
  optional float ratio = 50001;
  optional bytes raw = 50002;
  repeated sint32 many = 50003;
  optional Deep deep = 50004;
}
extend Deep {
  optional bool more = 10;
}
"""


def descriptor(schema: ProtobufSchema) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.serialized()))


@pytest.mark.parametrize(
    "text", [WRITTEN, PROTO2, EDITION, CUSTOM], ids=["proto3", "proto2", "edition", "options"]
)
def test_the_canonical_text_keeps_what_was_written(text: str) -> None:
    schema = parse(text)
    assert schema.canonical == text
    assert parse(schema.normalized).normalized == schema.normalized


def test_comments_layout_and_order_of_statements_do_not_matter() -> None:
    text = """// about
      syntax='proto3';import 'google/protobuf/any.proto' ; package p;
      enum E{Z=0;}
      message A{/* x */ oneof o{string s=2;}
        \trepeated
          p . B b=1[deprecated=true] ;map < string ,\tB > m=3; ; }
      message B{reserved 1,3 to 5;}"""
    assert parse(text).canonical == (
        'syntax = "proto3";\npackage p;\n\nimport "google/protobuf/any.proto";\n\n'
        "message A {\n  repeated p.B b = 1 [deprecated = true];\n  map<string, B> m = 3;\n\n"
        "  oneof o {\n    string s = 2;\n  }\n}\n"
        "message B {\n  reserved 1;\n  reserved 3 to 5;\n}\nenum E {\n  Z = 0;\n}\n"
    )


def test_the_normalized_text_is_sorted_and_has_full_names() -> None:
    assert parse(WRITTEN).normalized == NORMALIZED


def test_a_file_of_proto2_may_have_no_syntax() -> None:
    assert parse("message A {}").canonical == "\nmessage A {}\n"
    assert parse('syntax = "proto2"; message A {}').canonical == 'syntax = "proto2";\n\nmessage A {}\n'
    assert parse('syntax = "proto2"; message A {}').normalized == "\nmessage A {}\n"


@pytest.mark.parametrize(
    "text", [WRITTEN, PROTO2, EDITION, CUSTOM], ids=["proto3", "proto2", "edition", "options"]
)
def test_a_descriptor_is_the_same_schema(text: str) -> None:
    schema = parse(text)
    again = parse(schema.serialized())
    assert again.normalized == schema.normalized
    assert again.serialized() == schema.serialized()
    assert parse(again.canonical).canonical == again.canonical


def test_a_descriptor_of_a_client_has_full_names() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", package="p", syntax="proto3")
    message = file.message_type.add(name="A")
    message.field.add(name="a", number=1, label=1, type=11, type_name=".p.A")
    schema = parse(base64.b64encode(file.SerializeToString()).decode())
    assert schema.canonical == 'syntax = "proto3";\npackage p;\n\nmessage A {\n  .p.A a = 1;\n}\n'


def test_dependencies_may_be_descriptors() -> None:
    library = parse('syntax = "proto3"; package lib; message Part { string name = 1; }')
    text = 'syntax = "proto3";\n\nimport "lib.proto";\n\nmessage A {\n  lib.Part part = 1;\n}\n'
    as_text = parse(text, {"lib.proto": library.canonical})
    as_descriptor = parse(text, {"lib.proto": library.serialized()})
    assert as_text.canonical == as_descriptor.canonical == text
    assert parse(as_text.serialized(), {"lib.proto": library.serialized()}).normalized == as_text.normalized


def test_maps_are_understood_as_confluents_java_client_writes_them() -> None:
    text = """
    syntax = "proto3";
    package p;

    message A {
      repeated .p.A.CountsEntry counts = 1 [deprecated = true];
      int32 x = 2;

      message Before {}
      message CountsEntry {
        option map_entry = true;

        string key = 1;
        .p.A.Before value = 2;
      }
      message After {}
    }
    """
    schema = parse(text)
    (message,) = descriptor(schema).message_type
    assert [nested.name for nested in message.nested_type] == ["Before", "CountsEntry", "After"]
    assert "map<string, .p.A.Before> counts = 1 [deprecated = true];" in schema.canonical
    assert parse(schema.canonical).serialized() == schema.serialized()
    with pytest.raises(InvalidSchema, match="line 16, column 21"):
        parse(text.replace("message After", "massage After"))


def test_nested_messages_keep_their_indexes() -> None:
    text = """message A {
      message B {} map<string, B> m = 1; message C {} optional group G = 2 {} message D {}
    }"""
    schema = parse(text)
    for version in (schema, parse(schema.canonical), parse(schema.normalized), parse(schema.serialized())):
        (message,) = descriptor(version).message_type
        assert [nested.name for nested in message.nested_type] == ["B", "MEntry", "C", "G", "D"]


def test_the_descriptor_has_neither_positions_nor_default_json_names() -> None:
    (message,) = descriptor(
        parse("message A { optional int32 a_b = 1; optional int32 c = 2 [json_name = 'c']; }")
    ).message_type
    assert not descriptor(parse("message A {}")).HasField("source_code_info")
    assert [field.HasField("json_name") for field in message.field] == [False, True]


NAMES = st.sampled_from(["a", "b", "c_d", "E", "optional", "message", "map"])
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = [kind for kind in range(1, 19) if kind not in (10, 11, 14)]


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> Any:
    message = descriptor_pb2.DescriptorProto()
    numbers = draw(st.lists(st.integers(1, 18000), unique=True, max_size=5))
    names = draw(st.lists(NAMES, unique=True, min_size=len(numbers), max_size=len(numbers)))
    for number, name in zip(numbers, names, strict=True):
        field = message.field.add(name=f"f_{name}", number=number, label=draw(st.sampled_from([1, 3])))
        field.type = draw(st.sampled_from(SCALARS))
        if field.label == 1 and field.type == 9 and draw(st.booleans()):
            field.default_value = draw(STRINGS)
        if draw(st.booleans()):
            field.options.deprecated = draw(st.booleans())
    if draw(st.booleans()):
        message.oneof_decl.add(name="o")
        message.field.add(name="member", number=18001, label=1, type=5, oneof_index=0)
    if draw(st.booleans()):
        message.reserved_range.add(start=18100, end=18100 + draw(st.integers(1, 5)))
        message.reserved_name.append("gone")
    for index in range(draw(st.integers(0, 2)) if depth else 0):
        nested = draw(messages(depth - 1))
        nested.name = f"N{index}"
        message.nested_type.append(nested)
        if draw(st.booleans()):
            message.field.add(name=f"n{index}", number=18200 + index, label=1, type=11, type_name=f"N{index}")
    return message


def sorted_fields(file: Any) -> Any:
    """Return a file with the fields of every message in the order of their numbers."""
    left = list(file.message_type)
    while left:
        message = left.pop()
        message.field.sort(key=lambda field: field.number)
        left += message.nested_type
    return file


@settings(max_examples=60, deadline=None)
@given(st.lists(messages(), max_size=3))
def test_printed_descriptors_are_the_same_descriptors(parts: list[Any]) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="default.proto", package="p")
    for index, message in enumerate(parts):
        message.name = f"M{index}"
        file.message_type.append(message)
    schema = parse(print_file(file))
    again = parse(schema.canonical)
    assert again.canonical == schema.canonical
    assert sorted_fields(descriptor(again)) == sorted_fields(descriptor(schema))
    assert parse(schema.normalized).normalized == schema.normalized
    linked = sorted_fields(descriptor(schema))
    assert print_file(sorted_fields(descriptor(parse(schema.normalized)))) == print_file(linked)
