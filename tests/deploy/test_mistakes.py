"""Mistakes in a deployment: the broker names the setting, exits with 1, and leaves data as they were."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.brokers import ANY_PORT
from tests.conftest import NewBroker
from tests.integration.nodes import Node
from tests.ports import free_ports
from tests.waiting import eventually

PATIENCE_S = 60
NOBODY = 65534
LISTENERS = ("kafka", "http", "sqs", "registry", "grpc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def start(
    data: Path, *options: str, launcher: tuple[str, ...] = (), config: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Start a broker that cannot start."""
    command = [*launcher, sys.executable, "-m", "alpacamq.node.main", "serve", "--data-dir", str(data)]
    for listener in LISTENERS:
        if f"--{listener}" not in options:
            command += [f"--{listener}", ANY_PORT]
    if config:
        file = data.with_suffix(".toml")
        file.write_text(config)
        command += ["--config", str(file)]
    clean = {name: text for name, text in os.environ.items() if not name.startswith("ALPACAMQ_")}
    return subprocess.run(
        [*command, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**clean, **environment},
    )


def refused(ran: subprocess.CompletedProcess[str], *named: str) -> None:
    assert ran.returncode == 1, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("alpacamq: ")
    for text in named:
        assert text in last
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('[kafka]\nmax_connections = "many"\n', "kafka.max_connections"),
        ("[kafka]\nmax_connections = 0\n", "kafka.max_connections"),
        ('[kafka]\nlistne = "x"\n', "did you mean kafka.listen?"),
        ("[kafak]\nlisten = 1\n", "kafak"),
        ('[security]\nauthentication = true\nusers_file = "/absent"\n', "security.users_file /absent"),
        ('[tls]\ncertificate = "/absent"\nkey = "/absent"\n[kafka]\ntls = true\n', "tls.key /absent"),
        (
            '[cluster]\nlisten = "127.0.0.1:9093"\nnodes = ["1@127.0.0.1:1", "1@127.0.0.1:2"]\n',
            "cluster.nodes",
        ),
        ('[node]\nid = 7\n[cluster]\nnodes = ["1@127.0.0.1:1", "2@127.0.0.1:2"\n', "not TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, config: str, named: str) -> None:
    refused(start(tmp_path / "data", config=config), named)
    assert not (tmp_path / "data").exists()


def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    config = '[cluster]\nnodes = ["1@127.0.0.1:9093", "2@127.0.0.1:2"]\nsecret_file = "/absent"\n'
    refused(start(tmp_path / "data", config=config), "cluster.secret_file /absent")


def test_a_wrong_variable_is_named(tmp_path: Path) -> None:
    refused(start(tmp_path / "data", ALPACAMQ_KAFKA_MAX_CONNECTIONS="many"), "ALPACAMQ_KAFKA_MAX_CONNECTIONS")
    refused(start(tmp_path / "data", ALPACAMQ_KAFKA_LISTNE="x"), "ALPACAMQ_KAFKA_LISTNE")


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_port_that_is_taken_is_named_with_its_setting(tmp_path: Path, listener: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused(start(tmp_path / "data", f"--{listener}", address), address, f"{listener}.listen")
    assert not (tmp_path / "data").exists()


def test_a_name_that_does_not_resolve_is_named_with_its_setting(tmp_path: Path) -> None:
    address = "absent.invalid:9092"
    ran = start(tmp_path / "data", "--kafka", address, ALPACAMQ_SECURITY_ALLOW_ANONYMOUS="true")
    refused(ran, address, "kafka.listen")


@pytest.fixture
def nobody(tmp_path: Path) -> tuple[str, ...]:
    """Return a command that runs another as a user who may read, but not write, the temporary directory."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    for parent in [tmp_path, *tmp_path.parents][:4]:
        if parent != Path("/tmp"):  # noqa: S108
            parent.chmod(0o755)
    launcher = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    readable = subprocess.run([*launcher, sys.executable, "-c", "import alpacamq"], check=False)
    if readable.returncode != 0:
        pytest.skip("this checkout cannot be read by other users")
    return launcher


@pytest.mark.parametrize("exists", [True, False], ids=["root's", "in root's"])
def test_a_volume_of_another_user_is_named(tmp_path: Path, nobody: tuple[str, ...], exists: bool) -> None:
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o700)
    ran = start(volume if exists else volume / "data", launcher=nobody)
    refused(ran, str(volume), "Permission denied", "node.data_dir", f"user {NOBODY}")
    assert not list(volume.iterdir())


@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o460, False), (0o444, False)])
def test_a_users_file_of_root_is_read_as_its_group(
    tmp_path: Path, nobody: tuple[str, ...], mode: int, is_read: bool
) -> None:
    """As Kubernetes mounts a Secret for a container that does not run as root."""
    users = tmp_path / "users"
    users.write_text("admin:secret\n")
    users.chmod(mode)
    os.chown(users, 0, NOBODY)
    config = f'[security]\nauthentication = true\nusers_file = "{users}"\n'
    ran = start(tmp_path / "data", launcher=nobody, config=config)
    # The directory of its data cannot be written to: that is what it says if it has got so far.
    refused(ran, "node.data_dir" if is_read else "chmod 600")


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_read_only_volume_is_named(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    script = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
    launcher = ("unshare", "--mount", "sh", "-c", script, str(volume))
    if subprocess.run([*launcher, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounts are not allowed here")
    refused(start(volume, launcher=launcher), str(volume), "Read-only file system", "node.data_dir")


def test_a_file_in_place_of_the_volume_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("important")
    refused(start(tmp_path / "data"), str(tmp_path / "data"), "node.data_dir")
    assert (tmp_path / "data").read_text() == "important"


def _newer(data: Path) -> None:
    (data / "identity").write_text('{"format":9,"cluster_id":"x","node_id":1}\n')


def _of_another_node(data: Path) -> None:
    identity = data / "identity"
    assert '"node_id":1' in identity.read_text()


@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        pytest.param(_newer, (), ("format 9", "newer", "node.data_dir"), id="a newer version's"),
        pytest.param(
            _of_another_node,
            ("--node-id", "7"),
            ("belongs to node 1", "configured as 7"),
            id="another node's",
        ),
    ],
)
def test_data_of_others_are_refused_and_unchanged(
    new_broker: NewBroker, change: Callable[[Path], None], options: tuple[str, ...], named: tuple[str, ...]
) -> None:
    broker = new_broker().start()
    with httpx.Client(base_url=f"http://{broker.http_address}", timeout=30) as http:
        http.post("/topics/orders/messages", json={"value": "one"}).raise_for_status()
    broker.stop()
    change(broker.data_dir)
    before = contents(broker.data_dir)
    refused(start(broker.data_dir, *options), *named)
    assert contents(broker.data_dir) == before


def contents(data: Path) -> dict[str, bytes]:
    """Return all files but the lock, which names the last process."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_two_brokers_on_one_directory_leave_each_other_alone(new_broker: NewBroker) -> None:
    broker = new_broker().start()
    refused(start(broker.data_dir), "in use by another broker", str(broker.process.pid))
    httpx.get(f"http://{broker.http_address}/readyz", timeout=30).raise_for_status()


def test_a_node_without_names_of_the_others_says_which_it_waits_for(tmp_path: Path) -> None:
    """Names may appear later, as those of pods do: it waits, and is not ready."""
    ports = free_ports(4)
    listed = f"1@127.0.0.1:{ports[3]},2@absent.invalid:9093,3@none.invalid:9093"
    node = Node(tmp_path, 1, ports, listed)
    try:
        node.start()

        def waiting() -> str:
            try:
                answer = httpx.get(f"http://{node.http}/readyz", timeout=5)
            except httpx.TransportError:
                return ""
            return answer.text if answer.status_code == 503 and "absent.invalid" in answer.text else ""

        assert "node 2 at absent.invalid:9093" in eventually(waiting, what="it says what it waits for")
        assert not (node.data / "partitions").exists() or not any((node.data / "partitions").iterdir())
    finally:
        node.end()
