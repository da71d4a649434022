"""Installation: scripts/setup on various machines, and the content of the lock files."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOOLS = ("cat", "cksum", "dirname", "rm", "mkdir", "ln")
# A fake uv that records its calls and creates an environment with this Python.
UV = f"""#!/bin/sh
echo "$@" >>"$(dirname "$0")/../uv.calls"
echo "${{SSL_CERT_FILE:-}} ${{UV_SYSTEM_CERTS:-}}" >"$(dirname "$0")/../uv.certificates"
if [ "$1" = venv ]; then
    mkdir -p .venv/bin
    ln -s {sys.executable} .venv/bin/python
fi
"""


class Machine:
    """A copy of the files that the installation needs, and a PATH with only the commands of a test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project = home / "project"
        self._bin = home / "bin"
        self._bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None
            (self._bin / tool).symlink_to(found)
        shutil.copytree(ROOT / "scripts", self.project / "scripts")
        shutil.copytree(ROOT / "requirements", self.project / "requirements")
        shutil.copy(ROOT / "pyproject.toml", self.project)

    def add_command(self, name: str, script: str) -> None:
        (self._bin / name).write_text(script)
        (self._bin / name).chmod(0o755)

    def add_python(self, name: str, changed: str = "") -> None:
        """Add the Python of these tests as `name`, after it has run the line `changed`."""
        site = self.home / f"{name}.site"
        site.mkdir()
        executable = str(self._bin / name)
        (site / "sitecustomize.py").write_text(f"import sys\nsys.executable = {executable!r}\n{changed}\n")
        self.add_command(name, f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')

    def set_up(self, packages: str = "run", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.project / "scripts" / "setup", packages],
            env={"PATH": str(self._bin), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def uv_calls(self) -> list[str]:
        calls = self.home / "uv.calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_error_without_python_names_the_command_to_install_it(machine: Machine) -> None:
    refused = machine.set_up()
    assert refused.returncode == 1
    assert "sudo apt-get install python3 python3-venv" in refused.stderr


def test_the_error_for_an_old_python_names_its_version(machine: Machine) -> None:
    machine.add_python("python3", "sys.version_info = (3, 9, 2, 'final', 0)")
    refused = machine.set_up()
    assert refused.returncode == 1
    assert "needs Python 3.11 or newer; python3 here is 3.9" in refused.stderr


def test_the_error_without_venv_names_the_command_to_install_it(machine: Machine) -> None:
    machine.add_python("python3", "sys.modules['ensurepip'] = None")
    refused = machine.set_up()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert refused.returncode == 1
    assert f"sudo apt-get install python{version}-venv\n" in refused.stderr


@pytest.mark.parametrize("name", ["python3.13", "python3.12", "python3.11"])
def test_a_newer_python_under_its_own_name_is_found(machine: Machine, name: str) -> None:
    machine.add_python("python3", "sys.version_info = (3, 9, 2, 'final', 0)")
    machine.add_python(name)
    machine.add_command("uv", UV)
    assert machine.set_up().returncode == 0


def test_a_python_that_does_not_run_is_skipped(machine: Machine) -> None:
    machine.add_command("python3", "#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    machine.add_python("python3.12")
    machine.add_command("uv", UV)
    assert machine.set_up().returncode == 0
    assert machine.uv_calls[0] == f"venv --quiet --python {machine.home}/bin/python3.12 .venv"


@pytest.mark.parametrize("packages", ["run", "dev"])
def test_packages_are_installed_from_the_lock_with_hashes(machine: Machine, packages: str) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    assert machine.set_up(packages).returncode == 0
    _, locked, project = machine.uv_calls
    assert "--require-hashes" in locked
    assert locked.endswith(f"-r requirements/{packages}.lock")
    assert project.endswith("--no-deps -e .")


def test_the_first_start_of_the_broker_finds_byte_code(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    package = machine.project / "src" / "alpacamq"
    package.mkdir(parents=True)
    (package / "broker.py").write_text("print('started')\n")
    assert machine.set_up("run").returncode == 0
    assert "--compile-bytecode" in machine.uv_calls[1]
    assert list((package / "__pycache__").glob("broker.*.pyc"))


@pytest.mark.parametrize("name", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_uv_gets_the_certificates_that_pip_uses(machine: Machine, name: str) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    bundle = machine.home / "proxy.pem"
    bundle.touch()
    assert machine.set_up(**{name: str(bundle)}).returncode == 0
    assert (machine.home / "uv.certificates").read_text() == f"{bundle} \n"


def test_uv_gets_the_certificates_of_pips_configuration(machine: Machine) -> None:
    bundle = machine.home / "proxy.pem"
    bundle.touch()
    configuration = machine.home / ".config" / "pip" / "pip.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(f"[global]\ncert = {bundle}\n")
    machine.add_command("python3", f'#!/bin/sh\nexec {_python_with_pip()} "$@"\n')
    machine.add_command("uv", UV)
    assert machine.set_up(HOME=str(machine.home)).returncode == 0
    assert (machine.home / "uv.certificates").read_text() == f"{bundle} \n"


def _python_with_pip() -> str:
    for each in (sys.executable, os.path.realpath(sys.executable), shutil.which("python3")):
        if each and subprocess.run([each, "-m", "pip", "--version"], check=False).returncode == 0:
            return each
    pytest.skip("no Python here has pip")


@pytest.mark.skipif(
    not any(map(os.path.exists, ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"))),
    reason="the system has no certificates",
)
def test_uv_gets_the_certificates_of_the_system(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    assert machine.set_up(PIP_CONFIG_FILE=os.devnull).returncode == 0
    assert (machine.home / "uv.certificates").read_text() == " 1\n"


def test_the_second_call_does_nothing(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    machine.set_up("dev")
    before = machine.uv_calls
    assert machine.set_up("dev").returncode == 0
    assert machine.set_up("run").returncode == 0  # a subset of the installed packages
    assert machine.uv_calls == before


def test_a_changed_lock_file_is_installed_into_the_same_environment(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    machine.set_up()
    with (machine.project / "requirements" / "run.lock").open("a") as lock:
        lock.write("# newer\n")
    machine.set_up()
    assert [call.split()[0] for call in machine.uv_calls] == ["venv", "pip", "pip", "pip", "pip"]


def test_a_moved_environment_is_recreated(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV)
    machine.set_up()
    machine.project = machine.project.rename(machine.home / "elsewhere")
    machine.set_up()
    assert [call.split()[0] for call in machine.uv_calls].count("venv") == 2


def test_a_failed_installation_is_retried(machine: Machine) -> None:
    machine.add_python("python3")
    machine.add_command("uv", UV + "[ $1 = venv ]\n")
    assert machine.set_up().returncode != 0
    machine.add_command("uv", UV)
    assert machine.set_up().returncode == 0


@pytest.mark.parametrize("script", ["scripts/setup", ".ci/run"])
def test_scripts_are_executable(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def lock_files() -> list[Path]:
    return sorted((ROOT / "requirements").glob("*.lock"))


def locked(path: Path) -> dict[str, str]:
    """Return versions by package."""
    return dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", lock_files(), ids=lambda path: path.name)
def test_a_lock_file_holds_hashes_and_no_addresses(path: Path) -> None:
    text = path.read_text()
    assert text.count("--hash=sha256:") >= len(locked(path)) > 0
    assert "://" not in text
    assert "--index" not in text


def test_the_lock_files_hold_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = {
        "run": project["project"]["dependencies"],
        "dev": project["project"]["dependencies"] + project["dependency-groups"]["dev"],
    }
    for name, dependencies in declared.items():
        wanted = {re.split(r"[<>=!~ \[]", dependency)[0] for dependency in dependencies}
        assert wanted <= locked(ROOT / "requirements" / f"{name}.lock").keys()


def test_runtime_versions_equal_the_tested_ones() -> None:
    run, dev = (locked(ROOT / "requirements" / f"{name}.lock") for name in ("run", "dev"))
    assert run.items() <= dev.items()


def test_the_docs_install_the_package_from_a_checkout_or_a_wheel_as_no_index_has_it() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    commands = [line for page in pages for line in re.findall(r"pip install [^`\n]*", page.read_text())]
    assert len(commands) > 3
    assert [each for each in commands if re.search(r"[ '\"]alpacamq\b", each)] == []
