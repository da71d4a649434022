"""Parses Protobuf schemas in the process of the test."""

from alpacamq.broker.protobuf_worker import CompileRequest, compile_schema
from alpacamq.registry.protobuf import ProtobufSchema


def parse(text: str, dependencies: dict[str, str] | None = None) -> ProtobufSchema:
    """Return a schema of a text and the files that it imports, each after those that it imports itself."""
    compiled = compile_schema(CompileRequest(text, list((dependencies or {}).items())))
    return ProtobufSchema(compiled.serialized, compiled.dependencies, compiled.canonical, compiled.normalized)


def proto3(body: str) -> ProtobufSchema:
    return parse(f'syntax = "proto3";\n{body}')
