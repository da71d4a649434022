"""The Helm chart: rendered for every set of values in charts/, compared with what is stored, and checked.

`pytest tests/deploy/test_chart.py --rewrite-transcripts` stores what the chart renders. `make helmtools`
installs Helm and the schemas of Kubernetes; tests that need them are skipped without.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from alpacamq.cli.main import parse
from alpacamq.node.config import load
from alpacamq_spark.pipelines import load as load_pipeline

from .files import ROOT, alerts

CHART = ROOT / "deploy" / "helm" / "alpacamq"
PIPELINE = ROOT / "deploy" / "kubernetes" / "pipeline.yaml"
CHARTS = Path(__file__).parent / "charts"
SETS = sorted(CHARTS.glob("*.yaml"))
STORED = CHARTS / "rendered"
TOOLS = ROOT / ".venv" / "helmtools"
HELM = shutil.which("helm") or shutil.which("helm", path=str(TOOLS))
VALIDATE = TOOLS / "lib"
# The newest that both the chart and the schemas know, and the oldest.
VERSIONS = ("1.34.0", "1.27.0")
CRDS = (
    "monitoring.coreos.com/v1/ServiceMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "cert-manager.io/v1/Certificate",
)
# Drawn once for each installation.
DRAWN = re.compile(r"(  secret: )[A-Za-z0-9+/=]{40,}")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed; make helmtools")


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, check=False, timeout=60)


def template(values: Path, *options: str, version: str = VERSIONS[0]) -> str:
    kinds = [part for kind in CRDS for part in ("--api-versions", kind)]
    ran = helm(
        *("template", "mq", str(CHART), "--namespace", "queues", "--kube-version", version),
        *("--values", str(values), *(options or kinds)),
    )
    assert ran.returncode == 0, ran.stderr
    return DRAWN.sub(r"\1DRAWN", ran.stdout)


def objects(rendered: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(rendered) if each is not None]


def stored(values: Path) -> list[dict[str, Any]]:
    return objects((STORED / values.name).read_text())


def pods(values: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the specifications of all pods."""
    for each in stored(values):
        match each["kind"]:
            case "StatefulSet" | "Job":
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]
            case "Pod":
                yield each["metadata"]["name"], each["spec"]


def of_kind(values: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in stored(values) if each["kind"] == kind]


@needs_helm
@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_the_chart_renders_what_is_stored(values: Path, pytestconfig: pytest.Config) -> None:
    rendered = template(values)
    if pytestconfig.getoption("--rewrite-transcripts"):
        STORED.mkdir(exist_ok=True)
        (STORED / values.name).write_text(rendered)
    assert rendered == (STORED / values.name).read_text()


def test_there_are_stored_results_of_every_set_and_no_others() -> None:
    assert len(SETS) >= 12
    assert {path.name for path in STORED.glob("*")} == {path.name for path in SETS}


@needs_helm
@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_helm_finds_nothing_wrong(values: Path) -> None:
    kinds = ["--set", "tls.certManager.enabled=false"] if values.stem == "cert-manager" else []
    if kinds:
        kinds += ["--set", "tls.existingSecret=x"]
    ran = helm("lint", "--strict", "--kube-version", VERSIONS[0], str(CHART), "--values", str(values), *kinds)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(not VALIDATE.is_dir(), reason="kubernetes-validate is not installed; make helmtools")
@pytest.mark.parametrize("version", ["1.34", "1.27"])
def test_kubernetes_accepts_every_object_strictly(version: str, tmp_path: Path) -> None:
    known = [
        each
        for values in SETS
        for each in stored(values)
        if each["apiVersion"].partition("/")[0] not in _CRD_GROUPS
    ]
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all([*known, *yaml.safe_load_all(PIPELINE.read_text())]))
    ran = subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "--kubernetes-version", version, file],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(VALIDATE)},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_example_of_a_pipeline_runs_one_that_is_valid(tmp_path: Path) -> None:
    settings, _, deployment = yaml.safe_load_all(PIPELINE.read_text())
    [(name, text)] = settings["data"].items()
    (tmp_path / name).write_text(text)
    pipeline = load_pipeline(tmp_path / name)
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    parsed = parse(container["command"][3:])
    assert parsed.foreground
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert parsed.files == [Path("/etc/pipeline") / name]
    assert "/etc/pipeline" in mounts
    assert not pipeline.ends_by_itself
    assert any(pipeline.checkpoint_place.startswith(f"{place}/") for place in mounts)
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}


_CRD_GROUPS = {kind.partition("/")[0] for kind in CRDS}


@needs_helm
def test_optional_kinds_are_left_out_of_clusters_without_them() -> None:
    values = CHARTS / "monitoring.yaml"
    without = objects(template(values, "--set", "replicas=3"))
    assert not {each["kind"] for each in without} & {"ServiceMonitor", "PrometheusRule"}
    assert {"ServiceMonitor", "PrometheusRule"} <= {each["kind"] for each in stored(values)}


@needs_helm
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["auth.existingSecret="], "auth.existingSecret"),
        (["replicas=2"], "replicas is 2"),
        (["voters=5"], "voters (5)"),
        (["voters=2"], "voters"),
        (["replica=3"], "replica"),
        (["image.tagg=1"], "tagg"),
        (["tls.enabled=true"], "tls.existingSecret"),
        (["tls.enabled=true", "tls.certManager.enabled=true"], "tls.certManager.issuer.name"),
        (
            ["tls.enabled=true", "tls.certManager.enabled=true", "tls.certManager.issuer.name=x"],
            "install cert-manager",
        ),
        (["external.host=one.example.com"], "host"),
        (["persistence.size=big"], "size"),
        (["env.PATH=x"], "PATH"),
        (["terminationGracePeriodSeconds=1"], "terminationGracePeriodSeconds"),
    ],
)
def test_a_wrong_value_is_named(settings: list[str], named: str) -> None:
    given = [part for setting in ["auth.existingSecret=x", *settings] for part in ("--set", setting)]
    ran = helm("template", "mq", str(CHART), "--kube-version", VERSIONS[0], *given)
    assert ran.returncode != 0
    assert named in ran.stderr


def test_the_schema_accepts_the_defaults_and_every_set() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema_rs.validate(schema, defaults)
    assert schema["properties"].keys() - {"global"} == defaults.keys()
    for values in SETS:
        jsonschema_rs.validate(schema, yaml.safe_load(values.read_text()))
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"replica": 3})


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_pods_keep_the_restricted_standard(values: Path) -> None:
    """Of Kubernetes' pod security standards."""
    found = dict(pods(values))
    assert found
    for name, pod in found.items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] > 0, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not pod.get("hostNetwork"), name
        assert not pod.get("hostPID"), name
        assert pod["automountServiceAccountToken"] is False, name
        assert not any("hostPath" in volume for volume in pod["volumes"]), name
        for container in pod["containers"]:
            inner = container["securityContext"]
            assert inner["allowPrivilegeEscalation"] is False, name
            assert inner["capabilities"] == {"drop": ["ALL"]}, name
            assert inner["readOnlyRootFilesystem"], name
            assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_no_shell_is_process_1(values: Path) -> None:
    """Such a shell ignores SIGTERM, and the pod takes its whole grace period to stop."""
    for name, pod in pods(values):
        if pod.get("shareProcessNamespace"):
            continue  # process 1 is that of the pod
        for container in pod["containers"]:
            assert container["command"][0] == "tini", name


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_the_broker_accepts_the_configuration(values: Path, tmp_path: Path) -> None:
    """The variables and the file that a pod gets, as the broker reads them."""
    (nodes,) = of_kind(values, "StatefulSet")
    (config,) = (each for each in of_kind(values, "ConfigMap") if "alpacamq.toml" in each["data"])
    file = tmp_path / "alpacamq.toml"
    file.write_text(config["data"]["alpacamq.toml"])
    for name in ("secret", "users"):
        (tmp_path / name).write_text("admin:a long random text of the nodes\n")
        (tmp_path / name).chmod(0o600)
    variables = {
        each["name"]: each.get("value", "mq-0")
        for each in nodes["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    variables = {
        name: value.replace("$(POD_NAME)", "mq-0")
        .replace("/run/alpacamq/cluster/secret", str(tmp_path / "secret"))
        .replace("/run/alpacamq/auth/users", str(tmp_path / "users"))
        for name, value in variables.items()
        if name.startswith("ALPACAMQ_")
    }
    variables["ALPACAMQ_NODE_ID"] = "1"
    for api in ("KAFKA", "HTTP", "SQS", "REGISTRY", "GRPC"):
        variables[f"ALPACAMQ_{api}_LISTEN"] = "0.0.0.0:0"
    loaded = load(file, variables, {})
    assert loaded.security.authentication or loaded.security.allow_anonymous


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("default", "3 "),
        ("load-balancers", "3 mq-3.example.com:9094"),
        ("node-ports", "3 node-3.example.com:30102"),
    ],
)
def test_the_start_command_makes_the_id_and_the_address_of_a_node(values: str, expected: str) -> None:
    (nodes,) = of_kind(CHARTS / f"{values}.yaml", "StatefulSet")
    container = nodes["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    assert container["command"][-2:] == ["sh", "-c"]
    (command,) = container["args"]
    command, _, serve = command.partition("exec ")
    assert serve.startswith("alpacamq serve")
    ran = subprocess.run(
        ["sh", "-euc", f'{command} echo "$ALPACAMQ_NODE_ID ${{ALPACAMQ_LISTENERS_EXTERNAL_ADVERTISED:-}}"'],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], **environment, "POD_NAME": "mq-2"},
    )
    assert ran.stdout == f"{expected}\n"


def test_scaling_changes_nothing_about_who_founds_the_cluster() -> None:
    def listed(values: str) -> str:
        (nodes,) = of_kind(CHARTS / f"{values}.yaml", "StatefulSet")
        env = nodes["spec"]["template"]["spec"]["containers"][0]["env"]
        return str(next(each["value"] for each in env if each["name"] == "ALPACAMQ_CLUSTER_NODES"))

    assert listed("default") == listed("five")
    assert listed("default").count("@") == 3


def test_the_rules_of_the_chart_are_those_of_prometheus() -> None:
    (rule,) = of_kind(CHARTS / "monitoring.yaml", "PrometheusRule")
    found = [each["alert"] for group in rule["spec"]["groups"] for each in group["rules"] if "alert" in each]
    assert found == [alert.name for alert in alerts()]


def test_the_dashboards_of_the_chart_are_those_of_grafana() -> None:
    (dashboards,) = (
        each
        for each in of_kind(CHARTS / "monitoring.yaml", "ConfigMap")
        if "alpacamq-overview.json" in each["data"]
    )
    files = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
    assert dashboards["data"].keys() == {f"alpacamq-{file.name}" for file in files}
    for file in files:
        assert json.loads(dashboards["data"][f"alpacamq-{file.name}"]) == json.loads(file.read_text())
