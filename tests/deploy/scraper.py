"""A real Prometheus that scrapes brokers every second, with our rules."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.waiting import eventually

from .files import PROMETHEUS


class Prometheus:
    """Its HTTP API."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=f"http://{address}", timeout=30)

    def close(self) -> None:
        self._http.close()

    def is_up(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that answer a query; a failure if it is not one."""
        answer = self._http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def alerts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return found

    def targets(self) -> dict[str, str]:
        """Return the health of each target."""
        found = self._http.get("/api/v1/targets").json()["data"]["activeTargets"]
        return {each["labels"]["instance"]: each["health"] for each in found}

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {each["labels"]["alertname"] for each in self.alerts() if each["state"] == "firing"}

    def rules(self) -> list[dict[str, Any]]:
        groups = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def prometheus(directory: Path, *targets: str, fires_after: str | None = None) -> Iterator[Prometheus]:
    """A server on a free port, stopped at the end. `fires_after` replaces the time that alerts wait."""
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(_rules(directory, name, fires_after)) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={file}",
                f"--storage.tsdb.path={directory / 'series'}",
                "--web.listen-address=127.0.0.1:0",
                "--log.level=info",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        server = Prometheus(eventually(lambda: _address(log), what="Prometheus listens"))
        try:
            eventually(server.is_up, what="Prometheus is ready")
            yield server
        finally:
            server.close()
    finally:
        process.kill()
        process.wait(10)


def _rules(directory: Path, name: str, fires_after: str | None) -> Path:
    """Return the file with these rules."""
    if fires_after is None:
        return PROMETHEUS / name
    document = yaml.safe_load((PROMETHEUS / name).read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = fires_after
    changed = directory / name
    changed.write_text(yaml.safe_dump(document))
    return changed


def _address(log: Path) -> str:
    """Where it says it listens."""
    for line in log.read_text().splitlines():
        if "Listening on" in line and "address=" in line:
            return line.rpartition("address=")[2].strip()
    return ""
