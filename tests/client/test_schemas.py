"""The client of schema registries: addresses, errors, and the order in which schemas move."""

import pytest

from alpacamq.client.errors import NotFound, Unreachable
from alpacamq.client.http.connection import Problem
from alpacamq.client.http.schema_transfer import Content, InvalidExport, read_lines
from alpacamq.client.http.schemas import SchemaCodec, UnknownSchema, registry_at
from alpacamq.registry.records import SchemaValue
from alpacamq.registry.schema import InvalidSchema, Reference

from .test_http import answer, serving


@pytest.mark.parametrize(
    "url", ["localhost:8081", "ftp://localhost", "http://", "http://host/?a=1", "http://host:port/", ""]
)
def test_an_address_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
        registry_at(url)


def test_errors_of_a_registry_are_understood() -> None:
    unknown = answer(b'{"error_code": 40403, "message": "Schema 7 not found"}', "404 Not Found")
    forbidden = answer(b'{"error_code": 40301, "message": "not allowed"}', "403 Forbidden")
    with serving([unknown, forbidden]) as port, registry_at(f"http://127.0.0.1:{port}/a%20b") as registry:
        with pytest.raises(NotFound, match="there is no schema '7'"):
            registry.schema(7)
        with pytest.raises(Problem, match="not allowed"):
            registry.subjects()


def test_another_server_is_not_taken_for_a_registry() -> None:
    with (
        serving([answer(b"<html>")]) as port,
        registry_at(f"http://127.0.0.1:{port}") as registry,
        pytest.raises(Unreachable, match="is not a schema registry"),
    ):
        registry.subjects()


def test_references_that_lead_in_a_circle_end() -> None:
    def stored(subject: str, other: str) -> bytes:
        body = (
            f'{{"subject": "{subject}", "version": 1, "id": 1, "schema": "\\"int\\"",'
            f' "references": [{{"name": "r", "subject": "{other}", "version": 1}}]}}'
        )
        return answer(body.encode())

    answers = [stored("a", "b"), stored("b", "a"), stored("a", "b")]
    with (
        serving(answers) as port,
        registry_at(f"http://127.0.0.1:{port}") as registry,
        pytest.raises(InvalidSchema, match="circle"),
    ):
        SchemaCodec(registry).of(1)


def test_a_value_without_the_id_of_a_schema_is_told_apart() -> None:
    with registry_at("http://127.0.0.1:1") as registry, pytest.raises(UnknownSchema):
        SchemaCodec(registry).decode(b"text")


def value(subject: str, schema_id: int, *references: str) -> SchemaValue:
    return SchemaValue(
        subject=subject,
        version=1,
        id=schema_id,
        schema='"int"',
        references=tuple(Reference(each, each, 1) for each in references) or None,
    )


def test_schemas_move_after_those_that_they_refer_to() -> None:
    content = Content()
    for each in (value("a", 1, "b", "c"), value("b", 2, "c"), value("c", 3), value("d", 4, "d", "gone")):
        content.schemas[each.subject, 1] = each
    assert [each.subject for each in content.in_order()] == ["c", "b", "a", "d"]
    again = read_lines(content.lines())
    assert again.schemas == content.schemas


def test_lines_that_are_no_records_are_refused() -> None:
    with pytest.raises(InvalidExport, match="line 2 is not a record"):
        read_lines([b"", b'{"key": {"keytype": "SCHEMA"}, "value": {}}'])
