"""Resolution of the broker of a command: contexts, the environment, options."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpacamq.cli.contexts import Context, Contexts, file_of, read, write
from alpacamq.cli.main import main
from alpacamq.cli.parsing import UsageError
from alpacamq.cli.target import Precedence, Target
from tests.brokers import Broker
from tests.conftest import NewBroker

VARIABLES = (
    "ALPACACTL_BROKER", "ALPACACTL_HTTP", "ALPACAMQ_ADDRESS", "ALPACAMQ_USER", "ALPACAMQ_PASSWORD",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where contexts are kept, and nothing else said about brokers."""
    path = tmp_path / "deep" / "alpacactl.toml"
    monkeypatch.setenv("ALPACACTL_CONFIG", str(path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return path


def target(
    environ: Mapping[str, str],
    *,
    broker: str | None = None,
    http: str | None = None,
    context: str | None = None,
    user: str | None = None,
    password_file: str | None = None,
) -> Target:
    return Target(
        broker=broker, http=http, context=context, environ=environ, user=user, password_file=password_file
    )


def said(target: Target) -> tuple[str, str | None]:
    return target.http.address, None if target.broker is None else target.broker.address


def test_the_source_with_the_highest_precedence_wins(file: Path) -> None:
    here = {"ALPACACTL_CONFIG": str(file)}
    assert said(target(here)) == ("127.0.0.1:8080", "127.0.0.1:9092")
    write(
        file,
        Contexts(
            current="cafe",
            by_name={"cafe": Context(http="cafe:1", broker="cafe:2"), "bar": Context(http="bar:1")},
        ),
    )
    assert said(target(here)) == ("cafe:1", "cafe:2")
    address = {**here, "ALPACAMQ_ADDRESS": "env:1"}
    assert said(target(address)) == ("env:1", None)
    both = {**address, "ALPACACTL_HTTP": "ctl:1", "ALPACACTL_BROKER": "ctl:2"}
    assert said(target(both)) == ("ctl:1", "ctl:2")
    assert said(target(both, context="bar")) == ("bar:1", None)
    assert said(target(both, context="bar", broker="option:2")) == ("bar:1", "option:2")
    assert said(target(both, http="option:1")) == ("option:1", None)
    assert said(target(both, http="option:1", broker="option:2")) == ("option:1", "option:2")


def logged_in(target: Target) -> tuple[str, str, str] | None:
    login = target.login
    return None if login is None else (login.user, login.password, login.mechanism)


@pytest.fixture
def cafe(file: Path, tmp_path: Path) -> Path:
    """A current context with a user; the file of its password."""
    password = tmp_path / "password"
    password.write_text("of the cafe\r\nnot this\n")
    context = Context(broker="cafe:2", user="ann", password_file=str(password), mechanism="SCRAM-SHA-512")
    write(file, Contexts(current="cafe", by_name={"cafe": context, "bar": Context(broker="bar:2")}))
    return password


def test_a_command_logs_in_with_the_first_user_and_password_that_are_given(
    file: Path, cafe: Path, tmp_path: Path
) -> None:
    here = {"ALPACACTL_CONFIG": str(file)}
    ann = ("ann", "of the cafe", "SCRAM-SHA-512")
    assert logged_in(target(here)) == ann
    variables = {**here, "ALPACAMQ_USER": "bob", "ALPACAMQ_PASSWORD": "of bob"}
    assert logged_in(target(variables)) == ("bob", "of bob", "SCRAM-SHA-512")
    assert logged_in(target(variables, context="cafe")) == ann
    assert logged_in(target(variables, context="bar")) == ("bob", "of bob", "SCRAM-SHA-256")
    assert logged_in(target(here, context="bar")) is None
    other = tmp_path / "other"
    other.write_text("of the option")
    assert logged_in(target(variables, user="eve", password_file=str(other))) == (
        "eve", "of the option", "SCRAM-SHA-512",
    )  # fmt: skip


def test_the_password_of_the_current_context_is_for_its_broker_and_user_only(file: Path, cafe: Path) -> None:
    here = {"ALPACACTL_CONFIG": str(file)}
    assert logged_in(target(here, broker="other:2")) is None
    assert logged_in(target({**here, "ALPACACTL_BROKER": "other:2"})) is None
    with pytest.raises(UsageError, match="no password for user eve"):
        logged_in(target(here, user="eve"))
    with pytest.raises(UsageError, match="no password for user ann"):
        logged_in(target(here, broker="other:2", user="ann"))


def test_a_missing_empty_or_unused_password_file_is_a_usage_error(file: Path, tmp_path: Path) -> None:
    here = {"ALPACACTL_CONFIG": str(file)}
    with pytest.raises(UsageError, match="--password-file needs --user"):
        logged_in(target(here, password_file="x"))  # noqa: S106 - a path
    with pytest.raises(UsageError, match="cannot read"):
        logged_in(target(here, user="ann", password_file=str(tmp_path / "missing")))
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(UsageError, match="no password on its first line"):
        logged_in(target(here, user="ann", password_file=str(empty)))


def test_a_context_keeps_a_user_and_the_path_of_its_password(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["config", "set", "cafe", "--broker", "cafe.example", "--user", 'a"n\\n']
    assert main([*command, "--password-file", "pass"]) == 0
    kept = Context(broker="cafe.example:9092", user='a"n\\n', password_file=str(tmp_path / "pass"))
    assert read(file).by_name["cafe"] == kept
    assert main(["config", "set", "cafe", "--user", "bob"]) == 0
    assert read(file).by_name["cafe"] == Context(broker="cafe.example:9092", user="bob")
    assert main(["config", "set", "bar", "--password-file", "pass"]) == 2


def test_a_broken_file_matters_only_if_it_is_used(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("current = [")
    here = {"ALPACACTL_CONFIG": str(file)}
    assert said(target(here, http="a:1", broker="a:2")) == ("a:1", "a:2")
    with pytest.raises(UsageError, match="invalid contexts file"):
        said(target(here))


@pytest.mark.parametrize(
    "content",
    [
        "current = 1",
        "contexts = 1",
        "colour = 'red'",
        "[contexts.a]\nhttp = 1",
        "[contexts.a]\nhtpp = 'x:1'",
        '[contexts."a b"]',
        "\xff",
    ],
)
def test_an_invalid_file_is_named(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(UsageError, match=str(file)):
        read(file)


def test_the_file_follows_xdg_config_home(tmp_path: Path) -> None:
    assert file_of({"XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg/alpacamq/alpacactl.toml")
    assert file_of({"HOME": "/home/ann", "XDG_CONFIG_HOME": "relative"}) == Path(
        "/home/ann/.config/alpacamq/alpacactl.toml"
    )


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
addresses = st.none() | st.from_regex(r"[a-z0-9.]{1,20}:[0-9]{1,4}", fullmatch=True)
texts = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
contexts = st.dictionaries(
    names, st.builds(Context, http=addresses, broker=addresses, user=texts, password_file=texts), max_size=5
)


@given(by_name=contexts, current=st.none() | names)
def test_contexts_round_trip(
    tmp_path_factory: pytest.TempPathFactory, by_name: dict[str, Context], current: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "contexts.toml"
    write(path, Contexts(current=current, by_name=by_name))
    assert read(path) == Contexts(current=current, by_name=by_name)


def test_the_target_of_a_symbolic_link_is_written(tmp_path: Path) -> None:
    link, kept = tmp_path / "alpacactl.toml", tmp_path / "not yet" / "kept.toml"
    link.symlink_to(kept)
    contexts = Contexts(by_name={"a": Context(http="h:1")})
    write(link, contexts)
    assert link.is_symlink()
    assert read(kept) == contexts
    assert kept.stat().st_mode & 0o777 == 0o600
    assert list(kept.parent.iterdir()) == [kept]


def test_contexts_are_created_used_listed_and_deleted(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "cafe", "--http", "cafe.example:8080"]) == 0
    assert main(["config", "set", "bar", "--http", "http://bar.example/", "--broker", "bar.example"]) == 0
    assert main(["config", "set", "cafe", "--broker", "cafe.example:19092"]) == 0
    capsys.readouterr()
    assert main(["config", "get-contexts", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "bar",
            "current": False,
            "http": "bar.example:8080",
            "broker": "bar.example:9092",
            "user": None,
        },
        {
            "name": "cafe",
            "current": True,
            "http": "cafe.example:8080",
            "broker": "cafe.example:19092",
            "user": None,
        },
    ]
    assert main(["config", "use", "bar"]) == 0
    assert main(["config", "show", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["context"]["value"] == "bar"
    assert shown["http"] == {"value": "bar.example:8080", "from": "context bar"}
    assert main(["config", "delete", "bar", "--yes"]) == 0
    assert read(file) == Contexts(
        by_name={"cafe": Context(http="cafe.example:8080", broker="cafe.example:19092")}
    )
    assert [each.name for each in file.parent.iterdir()] == [file.name]


def test_an_unknown_context_gets_suggestions(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "set", "cafe", "--http", "cafe.example:8080"]) == 0
    for command in (["config", "use", "caffe"], ["topics", "list", "--context", "caffe"]):
        assert main(command) == 4
        assert "there is no context 'caffe'; did you mean 'cafe'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["set", "a b", "--http", "x:1"],
        ["set", "a"],
        ["set", "a", "--http", "x:y"],
        ["set", "a", "--broker", "x:0"],
        ["set", "a", "--http", 'x"y:1'],
        ["set", "a", "--http", "x\\y:1"],
        ["set", "", "--http", "x:1"],
    ],
    ids=" ".join,
)
def test_an_invalid_context_is_a_usage_error(file: Path, command: list[str]) -> None:
    assert main(["config", *command]) == 2
    assert not file.exists()


def test_one_address_is_enough_for_every_api(
    file: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALPACAMQ_ADDRESS", broker.http_address)
    assert main(["queue", "list"]) == 0
    capsys.readouterr()
    assert main(["cluster", "describe", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["brokers"][0]["address"] == broker.address
    monkeypatch.delenv("ALPACAMQ_ADDRESS")
    assert main(["config", "set", "test", "--http", broker.http_address]) == 0
    assert main(["topics", "list"]) == 0


def test_an_unreachable_advertised_address_is_explained(
    file: Path, new_broker: NewBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = new_broker(config='[kafka]\nadvertised = "127.0.0.1:1"\n').start()
    assert main(["--http", broker.http_address, "topics", "list"]) == 3
    errors = capsys.readouterr().err
    assert "127.0.0.1:1" in errors
    assert "kafka.advertised" in errors
    assert "--broker" in errors


def test_without_an_http_answer_the_kafka_address_is_unknown(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--http", "127.0.0.1:1", "topics", "list"]) == 3
    assert "no broker answers at 127.0.0.1:1" in capsys.readouterr().err


def test_only_the_command_line_overrides_the_broker_of_a_pipeline(file: Path) -> None:
    here = {"ALPACACTL_CONFIG": str(file)}
    assert not target({**here, "ALPACACTL_BROKER": "env:1"}).is_explicit
    assert target(here, broker="option:1").is_explicit
    assert target(here, http="option:1").is_explicit
    assert target(here).http.precedence is Precedence.DEFAULT
