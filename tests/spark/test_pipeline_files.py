"""Pipeline files: what is in them, and words for what is wrong."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.client.errors import NotFound, Unreachable
from alpacamq_spark.pipelines import load
from alpacamq_spark.pipelines.definition import Archive, Compact, Replay, Transform
from alpacamq_spark.pipelines.errors import InvalidPipeline, PipelineFailed, translate_error
from alpacamq_spark.pipelines.file import define, read_definition
from alpacamq_spark.pipelines.timestamps import (
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
)

from .pipeline_files import EXAMPLES, NOON_MS

# Every line names the one before ten times.
BOMB = b"\n".join(
    b"%c: &%c [%s]" % (98 + line, 98 + line, b",".join([b"*%c" % (97 + line)] * 10)) for line in range(6)
)
ARCHIVE = {"kind": "archive", "source": {"topics": ["a"]}, "sink": {"path": "x"}}
TRANSFORM = {"kind": "transform", "sources": {"a": {}}, "sql": "SELECT 1", "sink": {"topic": "y"}}
REPLAY = {"kind": "replay", "source": {"topics": ["a"]}, "sink": {"topic": "y"}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"kind": "archiv"}, "did you mean archive?", id="kind"),
        pytest.param({"kind": None}, "the key kind is missing", id="no kind"),
        pytest.param({"sorce": {}}, "unknown key sorce; did you mean source?", id="key"),
        pytest.param(
            {"source": {"topic": ["a"]}}, r"unknown key source\.topic; did you mean topics\?", id="inner"
        ),
        pytest.param({"source": {}}, "source needs either topics or pattern", id="no topics"),
        pytest.param({"sink": None}, "sink: Expected a table, got nothing", id="wrong type"),
        pytest.param(
            {"sink": {"path": "x", "compression": "zip"}},
            r"sink\.compression = 'zip' is not one of zstd, snappy, gzip, lz4, none; did you mean gzip\?",
            id="a choice",
        ),
        pytest.param({"decode": "avro"}, "decode = 'avro' is not one of registry", id="the only choice"),
        pytest.param(
            {"steps": [{"do": "sort"}]}, r"steps\[1\] has do = 'sort'; .* filter, compact", id="step"
        ),
        pytest.param({"steps": [{}]}, r"steps\[1\] lacks the key do", id="no step"),
        pytest.param({"steps": [{"do": "compact", "fan": 3}]}, "did you mean fan_in", id="key of a step"),
        pytest.param({"steps": [{"do": "compact", "fan_in": 1}]}, r"steps\[1\]\.fan_in", id="too few"),
        pytest.param({"trigger": "soon"}, "trigger: 'soon' is not a duration", id="trigger"),
        pytest.param({"name": "a/b"}, "a name may contain only letters", id="name"),
        pytest.param({"decode": "registry", "schema": "a INT"}, "exclude", id="decode and schema"),
        pytest.param({"version": 1}, "version is for decode", id="version without decode"),
        pytest.param({"spark": {"remote": "host"}}, "sc://HOST:PORT", id="remote"),
        pytest.param({"spark": {"remote": "sc://h", "master": "yarn"}}, "exclude", id="master and remote"),
    ],
)
def test_errors_are_named(changed: dict[str, object], message: str) -> None:
    given = {
        key: value for key, value in {**ARCHIVE, **changed}.items() if value is not None or key == "sink"
    }
    with pytest.raises(InvalidPipeline, match=message):
        define(given)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {**TRANSFORM, "sources": {"a": {"watermak": {}}}},
            r"unknown key sources\.a\.watermak; did you mean watermark",
        ),
        (
            {**TRANSFORM, "sources": {"a": {"watermark": {"delay": "1x"}}}},
            r"sources\.a\.watermark\.delay: '1x'",
        ),
        ({**TRANSFORM, "sources": {}}, "name at least one topic"),
        (
            {**TRANSFORM, "sources": {"a": {"decode": "registry", "format": "text"}}},
            r"sources\.a: decode and format exclude each other",
        ),
        ({**TRANSFORM, "sink": {"topic": "x", "path": "y"}}, "either topic or path"),
        (
            {**TRANSFORM, "sources": {"a": {}, "b": {"malformed": "skip"}}},
            r"sources\.b\.malformed = 'skip' is not one of keep, drop, fail, dead-letter",
        ),
        (
            {**TRANSFORM, "sources": {"a": {}, "b": {"max_records": "all"}}},
            r"sources\.b\.max_records: Expected a whole number",
        ),
        (
            {**TRANSFORM, "sources": {"a": {"dead_letters": "x"}}},
            r"sources\.a\.dead_letters is for malformed = 'dead-letter'",
        ),
        (
            {**TRANSFORM, "sources": {"a": {"malformed": "dead-letter", "dead_letters": "y"}}},
            r"sources\.a\.dead_letters: 'y' is another topic of the pipeline",
        ),
        (
            {**TRANSFORM, "sources": {"a": {"malformed": "dead-letter", "format": "text"}}},
            r"sources\.a: values of the format text are never malformed",
        ),
        ({**TRANSFORM, "sources": {"a": 3}}, r"sources\.a: Expected a table, got a whole number"),
        ({**TRANSFORM, "sources": {"b": {"topic": "y"}}}, r"sink\.topic: 'y' is the topic of sources\.b"),
        ({**TRANSFORM, "sources": {"y": {}}}, r"sink\.topic: 'y' is the topic of sources\.y"),
        ({**REPLAY, "source": {"topics": ["x", "y"]}}, r"sink\.topic: 'y' is a topic of the source"),
        ({**REPLAY, "source": {"pattern": "x|y"}}, r"sink\.topic: 'y' is a topic of the source"),
        ({**REPLAY, "source": {"pattern": "("}}, r"source\.pattern: '\(' is not a regular expression"),
        (
            {"kind": "analytics", "source": {"archive": "x"}, "sink": {"path": "x"}},
            r"sink\.path: 'x' is the archive that the pipeline reads",
        ),
        (
            {**REPLAY, "source": {"topics": ["a"], "from": "yesterday"}},
            r"source\.from: 'yesterday' is not a time",
        ),
        ({**REPLAY, "source": {"topics": ["a"], "from": -1}}, "an offset is 0 or more"),
        ({**REPLAY, "source": {"topics": ["a"], "to": {"a": {"x": 1}}}}, "not a partition and its offset"),
        ({**REPLAY, "source": {}}, "needs archive, table, delta, topics or pattern"),
        (
            {**REPLAY, "source": {"topics": ["a"]}, "sink": {"topic": "y", "encode": "registry"}},
            "encode is for source.sql",
        ),
        (
            {**TRANSFORM, "sink": {"topic": "y", "encode": "avro"}},
            "sink.encode = 'avro' is not one of registry",
        ),
        ({**TRANSFORM, "sink": {"topic": "y", "subject": "s"}}, "sink.subject is for encode = 'registry'"),
        ({**TRANSFORM, "sink": {"topic": "y", "schema_type": "json"}}, "sink.schema_type is for encode"),
        ({**TRANSFORM, "sink": {"path": "y", "encode_key": "registry"}}, "are for a topic"),
        (
            {
                **TRANSFORM,
                "sink": {"topic": "y", "encode": "registry", "version": 1, "derive": "always"},
            },
            "version and derive = 'always' exclude each other",
        ),
        (
            {**TRANSFORM, "sink": {"topic": "y", "encode": "registry", "schema_type": "xml"}},
            r"sink\.schema_type = 'xml' is not one of avro, json, protobuf",
        ),
        ([], "a pipeline must be a table"),
    ],
)
def test_errors_inside_other_kinds_are_named(data: object, message: str) -> None:
    with pytest.raises(InvalidPipeline, match=message):
        define(data)


def test_the_pipelines_of_the_guide_are_valid() -> None:
    guide = (EXAMPLES.parents[1] / "docs" / "guide" / "pipelines.md").read_text()
    blocks = re.findall(r"^```toml\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    kinds = [define(tomllib.loads(each)).kind for each in blocks]
    assert {"archive", "transform"} <= set(kinds)


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_examples_are_pipelines(path: Path) -> None:
    assert load(path).name == path.stem


@pytest.mark.parametrize(
    ("keys", "http", "expected"),
    [
        pytest.param("", None, "http://host:8080/schemas", id="the broker's host"),
        pytest.param("", "[::1]:8000", "http://[::1]:8000/schemas", id="the broker's HTTP API"),
        pytest.param("", "https://h/", "https://h/schemas", id="a URL"),
        pytest.param("tls = true", "h:1", "https://h:1/schemas", id="with TLS"),
        pytest.param('registry = "http://h:8081"', "h:1", "http://h:8081", id="the file"),
    ],
)
def test_the_schema_registry_is_that_of_the_file_or_of_the_broker(
    tmp_path: Path, keys: str, http: str | None, expected: str
) -> None:
    path = tmp_path / "p.toml"
    path.write_text(f'kind = "archive"\n{keys}\n[source]\ntopics = ["a"]\n[sink]\npath = "x"\n')
    assert load(path).at("host:9092,other:9092", http).registry == expected


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "p.toml", tmp_path / "p.yaml"
    toml.write_text(
        'kind = "replay"\n[source]\ntopics = ["a"]\nfrom = 2026-01-31T12:00:00Z\n'
        'to = { a = { 0 = 5 } }\n[sink]\ntopic = "b"\n'
    )
    yaml.write_text(
        "kind: replay\nsource:\n  topics: [a]\n  from: 2026-01-31T12:00:00Z\n  to: {a: {0: 5}}\n"
        "sink: {topic: b}\n"
    )
    definition = read_definition(toml)
    assert definition == read_definition(yaml)
    assert isinstance(definition, Replay)
    assert parse_timestamp(str(definition.source.begin), 0) == NOON_MS


def test_places_begin_where_the_file_is_and_the_broker_can_be_overruled(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_text('kind = "archive"\nbroker = "one:1"\n[source]\ntopics = ["a"]\n[sink]\npath = "../x"\n')
    pipeline = load(path)
    assert isinstance(pipeline.definition, Archive)
    assert pipeline.place(pipeline.definition.sink.path or "") == str(tmp_path.parent / "x")
    assert pipeline.place("s3a://bucket/x") == "s3a://bucket/x"
    assert pipeline.checkpoint_place == str(tmp_path / ".checkpoints" / "shop")
    assert (pipeline.broker, load(path, broker="two:2").broker) == ("one:1", "two:2")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"kind = ", "not TOML"),
        ("a.yaml", b"kind: [", "not YAML"),
        ("a.toml", b"\xff", "not text"),
        ("a.yaml", b"a: &a [1,2,3,4,5,6,7,8,9]\n" + BOMB, "more than 100000 values"),
        ("a.yaml", b"a: &a [*a]\n", "not YAML"),
        ("a.ini", b"kind = 1", "end in .toml"),
        ("a b.toml", b'kind = "archive"\nsource = {topics=["a"]}\nsink = {path="x"}', "name = …"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidPipeline, match=message):
        load(path)


def test_a_file_that_is_not_there_is_not_found_and_a_near_one_suggested(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text("")
    with pytest.raises(NotFound, match=r"did you mean '.*/orders\.toml'"):
        load(tmp_path / "order.toml")


def test_defaults_match_the_guide() -> None:
    archive, transform = define(ARCHIVE), define(TRANSFORM)
    assert isinstance(archive, Archive)
    assert isinstance(transform, Transform)
    assert (archive.trigger, archive.source.start, archive.sink.codec) == (
        "available-now",
        "earliest",
        "zstd",
    )
    assert Compact() == Compact(fan_in=10, target_mb=128)
    assert transform.sources["a"].malformed == "keep"
    assert msgspec.structs.asdict(archive.spark) == {
        "master": None,
        "remote": None,
        "settings": {},
        "package": None,
        "python": None,
    }


@given(
    st.integers(0, 10**9), st.sampled_from([("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)])
)
def test_spans_of_time_are_read_and_shown(number: int, unit: tuple[str, int]) -> None:
    span_ms = number * unit[1]
    assert parse_duration(f"{number}{unit[0]}") == span_ms
    assert parse_duration(format_duration(span_ms)) == span_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 minutes", 600_000),
        ("1 hour", 3_600_000),
        ("250 ms", 250),
        ("2 weeks", 1_209_600_000),
        ("3 milliseconds", 3),
    ],
)
def test_units_may_be_spelt_out(text: str, expected: int) -> None:
    assert parse_duration(text) == expected


@given(st.integers(0, 4_102_444_800_000))
def test_times_are_read_as_they_are_shown(timestamp_ms: int) -> None:
    assert parse_timestamp(format_timestamp(timestamp_ms), 0) == timestamp_ms
    assert parse_timestamp("1h", timestamp_ms) == max(0, timestamp_ms - 3_600_000)


def test_our_own_errors_are_found_inside_of_those_of_spark() -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance: Traceback:\n  File x\n"
        "alpacamq_spark.errors.DataLost: the records 3 to 4 of t-0 are gone\n\n\tat org.apache.spark.Foo\n"
    )
    found = translate_error(text)
    assert isinstance(found, PipelineFailed)
    assert str(found) == "the records 3 to 4 of t-0 are gone"
    gone = translate_error("x\nalpacamq.client.errors.Unreachable: no broker answers at h:1\n")
    assert isinstance(gone, Unreachable)
    assert str(translate_error("[PARSE] wrong here\nJVM stacktrace:\nmore")) == "[PARSE] wrong here"
