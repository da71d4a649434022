"""The Helm chart in a real Kubernetes: installed, upgraded, scaled, disturbed and removed. `make kube-test`.

The tests share one cluster and one release, which each leaves with three nodes that are ready.
"""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_chart import CHART, CHARTS, SETS
from tests.waiting import eventually

from .cluster import IMAGE, Kubernetes, kubernetes, missing

pytestmark = [pytest.mark.heavy, pytest.mark.skipif(missing() is not None, reason=missing() or "")]

NAMESPACE = "queues"
RELEASE = "mq"
PASSWORD = "correct-horse"  # noqa: S105 - of a cluster that lives for one test
VALUES = ("--values", str(CHARTS / "default.yaml"), "--set", "resources.requests.cpu=50m")
GRACE_S = 120
WAIT_S = 600
CLIENT = "client"
IN_SYNC = "until [ \"$(alpacactl cluster partitions -o json | tr -d ' \\n')\" = '[]' ]; do sleep 1; done"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with kubernetes(tmp_path_factory.mktemp("kubernetes")) as found:
        for name in (NAMESPACE, "sets"):
            found.apply(
                [
                    {
                        "apiVersion": "v1",
                        "kind": "Namespace",
                        "metadata": {
                            "name": name,
                            "labels": {
                                f"pod-security.kubernetes.io/{mode}": "restricted"
                                for mode in ("enforce", "warn")
                            },
                        },
                    }
                ]
            )
        yield found


@pytest.fixture(scope="module")
def installed(cluster: Kubernetes) -> Kubernetes:
    """Return the cluster with the release, and a pod of a client."""
    cluster.kubectl(
        *("--namespace", NAMESPACE, "create", "secret", "generic", "mq-admin"),
        *(f"--from-literal=users=admin:{PASSWORD}", "--from-literal=user=admin"),
        f"--from-literal=password={PASSWORD}",
    )
    install(cluster, "install")
    [test] = [
        each
        for each in yaml.safe_load_all(cluster.helm("get", "hooks", RELEASE, "--namespace", NAMESPACE))
        if each["kind"] == "Pod"
    ]
    # The same pod as that of `helm test`, which does nothing.
    test["metadata"] = {"name": CLIENT, "namespace": NAMESPACE}
    test["spec"]["terminationGracePeriodSeconds"] = 1
    [container] = test["spec"]["containers"]
    container |= {"command": ["sleep", "infinity"], "args": []}
    cluster.apply([test], "--validate=strict")
    cluster.kubectl(
        "--namespace", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{CLIENT}", "--timeout=120s"
    )
    return cluster


def install(cluster: Kubernetes, verb: str, *options: str) -> float:
    """Install or upgrade, wait until all nodes are ready, and return the seconds."""
    began = time.monotonic()
    cluster.helm(
        *(verb, RELEASE, str(CHART), "--namespace", NAMESPACE, *VALUES, *options),
        *("--wait", "--timeout", f"{WAIT_S}s"),
    )
    return time.monotonic() - began


def say(text: str) -> None:
    """Print a number for the record."""
    print(f"\n  {text}", end="", flush=True)


def ready(cluster: Kubernetes) -> tuple[int, int]:
    """Return how many pods are ready, and how many there should be."""
    found = cluster.get("statefulset", RELEASE, NAMESPACE)
    status = found["status"]
    if status.get("observedGeneration") != found["metadata"]["generation"]:
        return 0, found["spec"]["replicas"]
    return status.get("readyReplicas", 0), found["spec"]["replicas"]


def wait_until_ready(cluster: Kubernetes, count: int = 3) -> None:
    eventually(lambda: ready(cluster) == (count, count), within_s=WAIT_S, what=f"{count} pods are ready")
    client(cluster, IN_SYNC)


def wait_until_replaced(cluster: Kubernetes, name: str, uid: str) -> None:
    """Wait until another pod has that name, and all are ready and in sync."""

    def is_another() -> bool:
        path = "jsonpath={.metadata.uid}"
        found = cluster.kubectl("--namespace", NAMESPACE, "get", "pod", name, "-o", path, check=False)
        return found not in ("", uid)

    eventually(is_another, within_s=WAIT_S, what=f"there is another {name}")
    wait_until_ready(cluster)


def uid_of(cluster: Kubernetes, name: str) -> str:
    return str(pod(cluster, name)["metadata"]["uid"])


def client(cluster: Kubernetes, script: str, *, stdin: str | None = None) -> str:
    """Run a script in the pod of the client."""
    words = ("--namespace", NAMESPACE, "exec", "-i", CLIENT, "--", "sh", "-ec", script)
    return cluster.kubectl(*words, stdin=stdin)


def pod(cluster: Kubernetes, name: str) -> dict[str, Any]:
    return cluster.get("pod", name, NAMESPACE)


@contextmanager
def traffic(cluster: Kubernetes, topic: str) -> Iterator[dict[str, Any]]:
    """Send records from a pod during the block; what came of them is in the result afterwards."""
    client(cluster, f"alpacactl topics create {topic} --partitions 6 --replicas 3")
    client(cluster, "cat > /tmp/traffic.py", stdin=(Path(__file__).parent / "traffic.py").read_text())
    command = f"exec /opt/alpacamq/bin/python /tmp/traffic.py {topic}"
    sender = cluster.popen(
        *cluster.kubectl_command("--namespace", NAMESPACE, "exec", "-i", CLIENT, "--", "sh", "-c", command)
    )
    assert sender.stdout is not None
    assert sender.stdin is not None
    result: dict[str, Any] = {}
    try:
        first = sender.stdout.readline()
        assert first == "sending\n", first + sender.stdout.read()
        yield result
        said, _ = sender.communicate(timeout=WAIT_S)
        assert sender.returncode == 0, said
        result |= json.loads(said.splitlines()[-1])
    finally:
        sender.kill()
        sender.wait()


def check_nothing_lost(result: dict[str, Any], what: str) -> None:
    assert result["acknowledged"]
    assert not result["lost"]
    assert not result["twice"]
    say(
        f"{what}: {result['acknowledged']} records acknowledged, none lost, none twice, "
        f"longest pause {result['longest_pause_s']} s"
    )


# What the API server says

APPLY = ("--namespace", "sets", "apply", "--dry-run=server", "--validate=strict", "--filename", "-")
# Of every headless Service in this version, although the field is not set.
KNOWN_WARNINGS = ("Warning: spec.SessionAffinity is ignored for headless services",)


@pytest.fixture(scope="module")
def operators(cluster: Kubernetes) -> Kubernetes:
    """Return the cluster with the kinds of the Prometheus operator and cert-manager."""
    places = {
        "github.com/prometheus-operator/prometheus-operator@v0.85.0": [
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            for kind in ("servicemonitors", "prometheusrules")
        ],
        "github.com/cert-manager/cert-manager@v1.18.2": ["deploy/crds/crd-certificates.yaml"],
    }
    for module, files in places.items():
        found = subprocess.run(
            ["go", "mod", "download", "-json", module], capture_output=True, check=True, cwd=cluster.root
        )
        for file in files:
            definition = yaml.safe_load((Path(json.loads(found.stdout)["Dir"]) / file).read_text())
            # Its labels may be templates.
            definition["metadata"].pop("labels", None)
            cluster.kubectl("create", "--filename", "-", stdin=yaml.safe_dump(definition))
    cluster.kubectl(
        "wait", "--for=condition=Established", "customresourcedefinitions", "--all", "--timeout=60s"
    )
    return cluster


def template(cluster: Kubernetes, values: Path) -> str:
    options = ("--namespace", "sets", "--values", str(values), "--validate")
    return cluster.helm("template", RELEASE, str(CHART), *options)


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_the_api_server_accepts_every_set_of_values(operators: Kubernetes, values: Path) -> None:
    rendered = template(operators, values)
    assert {each["kind"] for each in yaml.safe_load_all(rendered) if each} == {
        each["kind"] for each in yaml.safe_load_all((CHARTS / "rendered" / values.name).read_text()) if each
    }
    ran = operators.run(*operators.kubectl_command(*APPLY), stdin=rendered)
    warnings = [line for line in ran.stderr.splitlines() if line not in KNOWN_WARNINGS]
    assert not warnings


def test_a_mistyped_field_is_refused(operators: Kubernetes) -> None:
    rendered = template(operators, CHARTS / "default.yaml").replace(
        "podManagementPolicy", "podManagmentPolicy"
    )
    ran = operators.run(*operators.kubectl_command(*APPLY), stdin=rendered, check=False)
    assert ran.returncode != 0
    assert 'unknown field "spec.podManagmentPolicy"' in ran.stderr


# The life of a release


def test_three_nodes_are_installed_and_serve(installed: Kubernetes) -> None:
    assert ready(installed) == (3, 3)
    starts = [pod(installed, f"{RELEASE}-{ordinal}") for ordinal in range(3)]
    for each in starts:
        [status] = each["status"]["containerStatuses"]
        assert status["restartCount"] == 0
    installed.helm("test", RELEASE, "--namespace", NAMESPACE, "--timeout", f"{WAIT_S}s")
    client(installed, "alpacactl topics create orders --partitions 6 --replicas 3")
    client(installed, "seq 1 100 | alpacactl produce orders")
    said = client(installed, "alpacactl consume orders --exit -o json")
    assert len(re.findall(r'"value": "\d+"', said)) == 100


def test_a_pod_stops_as_soon_as_its_broker_has(installed: Kubernetes) -> None:
    """Not after its whole grace period, and without being killed."""
    name = f"{RELEASE}-1"
    uid = uid_of(installed, name)
    with traffic(installed, "deleted") as result:
        began = time.monotonic()
        installed.kubectl("--namespace", NAMESPACE, "delete", "pod", name)
        took_s = time.monotonic() - began
        wait_until_replaced(installed, name, uid)
    assert took_s < GRACE_S, "the container did not end by itself"
    say(f"deleted pod gone after {took_s:.1f} s, 5 s of which are preStop")
    check_nothing_lost(result, "pod deleted")


def test_a_pod_that_is_killed_comes_back(installed: Kubernetes) -> None:
    name = f"{RELEASE}-2"
    uid = uid_of(installed, name)
    with traffic(installed, "killed") as result:
        began = time.monotonic()
        installed.kubectl("--namespace", NAMESPACE, "delete", "pod", name, "--grace-period=0", "--force")
        wait_until_replaced(installed, name, uid)
        say(f"killed pod back and in sync after {time.monotonic() - began:.1f} s")
    check_nothing_lost(result, "pod killed")


def test_one_pod_at_a_time_is_evicted(installed: Kubernetes) -> None:
    def evict(name: str) -> subprocess.CompletedProcess[str]:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        words = installed.kubectl_command("create", "--raw", path, "--filename", "-")
        return installed.run(*words, stdin=json.dumps(body), check=False)

    eventually(
        lambda: installed.get("pdb", RELEASE, NAMESPACE)["status"]["disruptionsAllowed"] == 1,
        what="an eviction is allowed",
    )
    uid = uid_of(installed, f"{RELEASE}-0")
    with traffic(installed, "evicted") as result:
        first, second = evict(f"{RELEASE}-0"), evict(f"{RELEASE}-1")
        assert first.returncode == 0, first.stderr
        assert second.returncode != 0
        assert "disruption budget" in second.stderr
        wait_until_replaced(installed, f"{RELEASE}-0", uid)
    check_nothing_lost(result, "eviction of one pod, of another refused")


def test_an_upgrade_and_its_rollback_lose_nothing(installed: Kubernetes) -> None:
    with traffic(installed, "upgraded") as result:
        took_s = install(installed, "upgrade", "--set", "image.tag=next")
        wait_until_ready(installed)
    images = {pod(installed, f"{RELEASE}-{n}")["spec"]["containers"][0]["image"] for n in range(3)}
    assert images == {f"{IMAGE}:next"}
    check_nothing_lost(result, f"upgrade of three nodes in {took_s:.0f} s")
    with traffic(installed, "rolled-back") as result:
        began = time.monotonic()
        options = ("--namespace", NAMESPACE, "--wait", "--timeout", f"{WAIT_S}s")
        installed.helm("rollback", RELEASE, "1", *options)
        took_s = time.monotonic() - began
        wait_until_ready(installed)
    images = {pod(installed, f"{RELEASE}-{n}")["spec"]["containers"][0]["image"] for n in range(3)}
    assert f"{IMAGE}:next" not in images
    check_nothing_lost(result, f"rollback in {took_s:.0f} s")


def scale_in(cluster: Kubernetes, count: int) -> None:
    """Give up the last of `count` nodes, as the notes of the chart say."""
    notes = cluster.helm("get", "notes", RELEASE, "--namespace", NAMESPACE)
    steps = notes[notes.index("  kubectl -n queues get secret") :]
    empty, upgrade, forget = re.split(r"^  (helm .*)$", steps, flags=re.MULTILINE)
    assert f"cluster drain {count}\n" in empty
    assert f"cluster remove {count} --yes" in forget
    cluster.shell(empty)
    install(cluster, "upgrade", "--set", upgrade.rpartition("--set ")[2])
    wait_until_ready(cluster, count - 1)
    cluster.shell(forget)


def test_five_nodes_and_three_again(installed: Kubernetes) -> None:
    with traffic(installed, "scaled") as result:
        took_s = install(installed, "upgrade", "--set", "replicas=5")
        wait_until_ready(installed, 5)
        say(f"two more nodes after {took_s:.0f} s")
        client(installed, "alpacactl topics create wide --partitions 10 --replicas 3")
        client(installed, "seq 1 100 | alpacactl produce wide")
        for count in (5, 4):
            scale_in(installed, count)
    check_nothing_lost(result, "three nodes, five, and three again")
    said = client(installed, "alpacactl consume wide --exit -o json")
    assert len(re.findall(r'"value": "\d+"', said)) == 100
    said = client(installed, "alpacactl cluster describe -o json")
    assert [broker["id"] for broker in json.loads(said)["brokers"]] == [1, 2, 3]


def test_what_was_stored_is_there_after_an_uninstall(installed: Kubernetes) -> None:
    before = client(installed, "alpacactl consume orders --exit -o json")
    began = time.monotonic()
    installed.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--timeout", f"{WAIT_S}s")
    eventually(
        lambda: (
            not installed.kubectl(
                *("--namespace", NAMESPACE, "get", "pods", "--selector", "app.kubernetes.io/name=alpacamq"),
                *("-o", "name"),
            )
        ),
        within_s=WAIT_S,
        what="no pod is left",
    )
    say(f"uninstalled after {time.monotonic() - began:.1f} s")
    left = installed.kubectl("--namespace", NAMESPACE, "get", "secret,pvc,service,statefulset", "-o", "name")
    assert f"secret/{RELEASE}-cluster" in left
    assert f"persistentvolumeclaim/data-{RELEASE}-0" in left
    assert "service/" not in left
    assert "statefulset" not in left
    install(installed, "install")
    wait_until_ready(installed)
    assert client(installed, "alpacactl consume orders --exit -o json") == before


def test_a_missing_secret_is_named_and_may_come_later(cluster: Kubernetes) -> None:
    """And a pod with a container for backups stops as fast as one without."""
    place = ("--namespace", NAMESPACE)
    values = ("auth.existingSecret=late", "replicas=1", "backup.enabled=true", "resources.requests.cpu=50m")
    options = [word for value in values for word in ("--set", value)]
    cluster.helm("install", "late", str(CHART), *place, *options)

    def events() -> str:
        return cluster.kubectl(*place, "get", "events", "--field-selector", "involvedObject.name=late-0")

    eventually(lambda: 'secret "late" not found' in events(), within_s=WAIT_S, what="an event names it")
    cluster.kubectl(*place, "create", "secret", "generic", "late", f"--from-literal=users=admin:{PASSWORD}")
    cluster.kubectl(*place, "wait", "--for=condition=Ready", f"--timeout={WAIT_S}s", "pod/late-0")
    began = time.monotonic()
    cluster.helm("uninstall", "late", *place)
    cluster.kubectl(*place, "wait", "--for=delete", f"--timeout={WAIT_S}s", "pod/late-0")
    took_s = time.monotonic() - began
    assert took_s < GRACE_S, "a container did not end by itself"
    say(f"a pod with backups is gone after {took_s:.1f} s")
