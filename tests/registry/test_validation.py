"""Checks of records against the schemas that they name."""

import json
from uuid import UUID

import pytest

from alpacamq.model.batch import Codec
from alpacamq.model.compression import TooMuchData
from alpacamq.model.errors import RecordError
from alpacamq.model.records import Content, Header, Record, read_contents, write_batch
from alpacamq.model.topics import topic_config
from alpacamq.registry import avro
from alpacamq.registry.framing import framed
from alpacamq.registry.json_schema import schema as json_schema
from alpacamq.registry.validation import (
    MAX_MISSING,
    MAX_REFUSED,
    Checked,
    Known,
    Refused,
    Rule,
    Wanted,
    check_records,
    rules_of,
)

ORDER = avro.parse(
    json.dumps({"type": "record", "name": "acme.Order", "fields": [{"name": "id", "type": "long"}]})
)
PRICE = json_schema.parse(
    json.dumps({"title": "Price", "type": "object", "properties": {"amount": {"type": "number"}}})
)
GUID = UUID("5a1f2a6e-0000-4000-8000-000000000001")
GOOD, BAD = b"\x02", b"\x80"


def rules(**settings: str) -> tuple[Rule, ...]:
    return rules_of("orders", topic_config({name.replace("_", "."): text for name, text in settings.items()}))


def value(data: bytes | None, *headers: tuple[str, bytes | None]) -> Content:
    return 0, None, data, tuple(Header(*each) for each in headers)


def key(data: bytes | None, *headers: tuple[str, bytes | None]) -> Content:
    return 0, data, b"not checked", tuple(Header(*each) for each in headers)


def reasons(checked: Checked) -> list[str]:
    assert not checked.missing
    return [each.reason for each in checked.refused]


FULL = rules(schema_validation="full")
ORDER_VALUE = Wanted(1, "orders-value", is_parsed=True)
KNOWN: dict[Wanted, Known] = {ORDER_VALUE: ORDER}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(framed(1, GOOD), None, id="a value of the schema"),
        pytest.param(None, None, id="a tombstone"),
        pytest.param(
            framed(1, BAD),
            "value does not match schema 1 of subject 'orders-value' at id: data ends inside the value",
            id="data of another schema",
        ),
        pytest.param(
            GOOD,
            "value names no schema, neither before its data nor in a header __value_schema_id",
            id="no prefix",
        ),
        pytest.param(
            b"",
            "value names no schema, neither before its data nor in a header __value_schema_id",
            id="nothing at all",
        ),
        pytest.param(framed(2, GOOD), "value names schema 2, which does not exist", id="an unknown id"),
    ],
)
def test_a_value_has_to_match_the_schema_it_names(data: bytes | None, reason: str | None) -> None:
    unknown = Refused("names schema 2, which does not exist")
    known = KNOWN | {Wanted(2, "orders-value", is_parsed=True): unknown}
    checked = check_records([value(framed(1, GOOD)), value(data)], FULL, known)
    assert checked.refused == (() if reason is None else (RecordError(1, reason),))
    assert checked.records == 2


@pytest.mark.parametrize(
    ("header", "content"),
    [
        pytest.param(b"\x01" + GUID.bytes, GOOD, id="a GUID in the header"),
        pytest.param(framed(1, b""), GOOD, id="an id in the header"),
        pytest.param(None, b"\x01" + GUID.bytes + GOOD, id="a GUID before the data"),
    ],
)
def test_a_schema_is_named_where_serializers_put_it(header: bytes | None, content: bytes) -> None:
    known = KNOWN | {Wanted(GUID, "orders-value", is_parsed=True): ORDER}
    headers = [] if header is None else [("__key_schema_id", b"other"), ("__value_schema_id", header)]
    assert reasons(check_records([value(content, *headers)], FULL, known)) == []
    bad = content.replace(GOOD, BAD) if content == GOOD else content[:-1] + BAD
    (reason,) = reasons(check_records([value(bad, *headers)], FULL, known))
    assert "data ends inside the value" in reason


@pytest.mark.parametrize("header", [b"", b"\x00\x00", b"garbage", None])
def test_a_header_that_names_no_schema_is_refused(header: bytes | None) -> None:
    sent = value(framed(1, GOOD), ("__value_schema_id", header))
    assert reasons(check_records([sent], FULL, KNOWN)) == [
        "value has a header __value_schema_id that names no schema"
    ]


def test_only_the_id_is_checked_at_the_level_id() -> None:
    wanted = Wanted(1, "orders-value", is_parsed=False)
    for settings in ({"schema_validation": "id"}, {"confluent_value_schema_validation": "true"}):
        checked = check_records([value(framed(1, BAD))], rules(**settings), {wanted: None})
        assert (checked.refused, checked.used) == ((), (wanted,))


def test_keys_are_checked_only_if_the_topic_says_so() -> None:
    assert [rule.part for rule in FULL] == ["value"]
    only_keys = rules(confluent_key_schema_validation="true")
    assert [rule.part for rule in only_keys] == ["key"]
    known: dict[Wanted, Known] = {Wanted(1, "orders-key", is_parsed=False): None}
    assert reasons(check_records([key(framed(1, BAD)), key(None)], only_keys, known)) == []
    (reason,) = reasons(check_records([key(b"k")], only_keys, known))
    assert reason == "key names no schema, neither before its data nor in a header __key_schema_id"
    both = rules(confluent_key_schema_validation="true", schema_validation="full")
    known = {Wanted(1, "orders-key", is_parsed=True): ORDER, ORDER_VALUE: ORDER}
    checked = check_records([(0, framed(1, BAD), framed(1, GOOD), ())], both, known)
    assert reasons(checked) == [
        "key does not match schema 1 of subject 'orders-key' at id: data ends inside the value"
    ]


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "orders-value"),
        ("RecordNameStrategy", "acme.Order"),
        ("TopicRecordNameStrategy", "orders-acme.Order"),
        ("io.confluent.kafka.serializers.subject.RecordNameStrategy", "acme.Order"),
    ],
)
@pytest.mark.parametrize("level", ["id", "full"])
def test_the_subject_follows_from_the_strategy(strategy: str, subject: str, level: str) -> None:
    of_strategy = rules(schema_validation=level, confluent_value_subject_name_strategy=strategy)
    known: dict[Wanted, Known] = {}
    asked: list[Wanted] = []
    while (checked := check_records([value(framed(1, GOOD))], of_strategy, known)).missing:
        asked.extend(checked.missing)
        known.update({wanted: ORDER if wanted.is_parsed else None for wanted in checked.missing})
    assert asked[-1].subject == subject
    assert checked.refused == ()
    known[asked[-1]] = Refused("names schema 1, which is not a version of the subject")
    assert len(check_records([value(framed(1, GOOD))], of_strategy, known).refused) == 1


def test_a_schema_without_a_name_has_no_subject_by_name() -> None:
    by_name = rules(schema_validation="id", confluent_value_subject_name_strategy="RecordNameStrategy")
    known: dict[Wanted, Known] = {Wanted(1, None, is_parsed=True): avro.parse('"long"')}
    assert reasons(check_records([value(framed(1, GOOD))], by_name, known)) == [
        "value names schema 1, in which the record has no name"
    ]


def test_plain_json_is_checked_by_the_subject_of_the_topic() -> None:
    plain = rules(schema_validation="full", schema_validation_subject="prices")
    known: dict[Wanted, Known] = KNOWN | {Wanted(None, "prices", is_parsed=True): PRICE}
    sent = [value(b'{"amount": 1}'), value(framed(1, GOOD)), value(b'{"amount": "1"}'), value(b"{")]
    first, second = reasons(check_records(sent, plain, known))
    assert first == (
        "value does not match the latest version of subject 'prices' at /amount: "
        '"1" is not of type "number"'
    )
    assert "invalid JSON" in second


def test_missing_schemas_are_reported_together() -> None:
    sent = [value(framed(number, GOOD)) for number in range(10)]
    assert {wanted.schema for wanted in check_records(sent, FULL, {}).missing} == {*range(10)}
    many = (value(framed(number, GOOD)) for number in range(100_000))
    assert len(check_records(many, FULL, {}).missing) == MAX_MISSING
    assert next(many)[2] == framed(MAX_MISSING, GOOD), "it ends when enough are missing"


def test_a_check_ends_after_many_refusals() -> None:
    sent = (value(framed(1, BAD)) for _ in range(100_000))
    assert len(check_records(sent, FULL, KNOWN).refused) == MAX_REFUSED
    assert next(sent, None) is not None


def test_a_long_reason_is_cut() -> None:
    any_text = json_schema.parse('{"maxLength": 1}')
    data = b'"' + b"x" * 100_000 + b'"'
    (reason,) = reasons(check_records([value(framed(1, data))], FULL, {ORDER_VALUE: any_text}))
    assert len(reason) <= 500


@pytest.mark.parametrize("codec", Codec)
def test_records_of_compressed_batches_are_checked_within_a_limit(codec: Codec) -> None:
    records = [Record(at, 0, b"k", framed(1, GOOD if at else BAD), (Header("h", b""),)) for at in range(100)]
    batch = write_batch(records, codec=codec)
    assert [each.place for each in check_records(read_contents(batch), FULL, KNOWN).refused] == [0]
    if codec is not Codec.NONE:
        with pytest.raises(TooMuchData):
            check_records(
                read_contents(write_batch([Record(0, 0, None, bytes(1 << 20))], codec=codec), 1000),
                FULL,
                KNOWN,
            )


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        pytest.param(PRICE, b"[" * 100_000, "nested more than 100", id="deep JSON that does not end"),
        pytest.param(PRICE, b"[" * 100_000 + b"]" * 100_000, "nested more than 100", id="deep JSON"),
        pytest.param(
            avro.parse('{"type": "array", "items": "null"}'),
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
            "items without data",
            id="an Avro array of nulls",
        ),
        pytest.param(
            avro.parse('{"type": "array", "items": "long"}'),
            b"\xfe\xff\xff\xff\x0f\x00",
            "longer than the data",
            id="an Avro block that is too long",
        ),
        pytest.param(
            avro.parse(
                '{"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}'
            ),
            b"\x02" * 100_000 + b"\x00",
            "nested more than 100 deep",
            id="a deep value of a recursive type",
        ),
    ],
)
def test_hostile_data_is_refused(schema: Known, data: bytes, reason: str) -> None:
    (found,) = reasons(check_records([value(framed(1, data))], FULL, {ORDER_VALUE: schema}))
    assert reason in found
