"""A Kubernetes of one machine: control plane, kubelet, containerd, DNS and kube-proxy, to test the chart in.

Everything runs in namespaces of its own for processes, mounts and networks: when their first process ends,
nothing is left but control groups, which are removed. Needs root, the programs of deploy/kubernetes/tools,
Debian's etcd, containerd, runc, CNI plugins, and the image.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.waiting import eventually

ROOT = Path(__file__).parent.parent.parent
TOOLS = ROOT / "deploy" / "kubernetes" / "tools"
IMAGE = os.environ.get("ALPACAMQ_IMAGE", "localhost/alpacamq")
PAUSE = "localhost/pause:1"
ADDRESS = "10.79.0.1"
PODS = "10.80.0.0/16"
SERVICES = "10.96.0.0/16"
TOKEN = "of-the-administrator"  # noqa: S105 - of a cluster that lives for one test
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
PLUGINS = Path("/usr/lib/cni")
VOLUMES = 12
START_S = 300.0
COMMAND_S = 900.0

# The first process of the namespaces. It collects the processes whose parents have ended.
INIT = """
set -eu
mount --make-rprivate /
mount --bind "$1/log" /var/log
mount --bind "$1/kubelet" /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mount -t tmpfs none /run
ip link set lo up
ip link add node0 type bridge
ip address add "$2/24" dev node0
ip link set node0 up
ip route add default dev node0
echo 1 > /proc/sys/net/ipv4/ip_forward
echo > "$1/ready"
while :; do sleep 3600 & wait; done
"""


def programs() -> Path | None:
    """Return the directory that deploy/kubernetes/tools has filled; None if it is not complete."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for found in sorted(cache.glob("alpacamq/kubernetes/*/bin")):
        if all((found / each).exists() for each in (*PROGRAMS, "helm", "coredns")):
            return found
    return None


def missing() -> str | None:
    """Why no cluster can be started here; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    for program in ("etcd", "containerd", "runc", "nft", "podman", "gcc", "openssl"):
        if shutil.which(program) is None:
            return f"needs {program}"
    if not (PLUGINS / "ptp").exists():
        return "needs Debian's containernetworking-plugins"
    if programs() is None:
        return "needs deploy/kubernetes/tools to have been run"
    if subprocess.run(["podman", "image", "exists", f"{IMAGE}:latest"], capture_output=True).returncode:
        return f"needs the image {IMAGE}: make image"
    return None


class Kubernetes:
    """A running cluster."""

    def __init__(self, root: Path) -> None:
        found = programs()
        assert found is not None
        self._bin = found
        self.root = root
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._init: subprocess.Popen[bytes] | None = None
        self._groups = f"alpacamq-kube-{os.getpid()}"
        self.kubeconfig = root / "kubeconfig"

    # Commands

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl, and return what it prints."""
        return self.run(str(self._bin / "kubectl"), *words, stdin=stdin, check=check).stdout

    def helm(self, *words: str) -> str:
        """Run helm, and return what it prints."""
        return self.run(str(self._bin / "helm"), *words).stdout

    def run(
        self, *command: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the network of the cluster."""
        ran = subprocess.run(
            [*self._inside("--net"), *command],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
            env=self._environment(),
        )
        assert not check or ran.returncode == 0, (
            f"{' '.join(command)}: exit code {ran.returncode}:\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}"
        )
        return ran

    def shell(self, script: str) -> str:
        """Run a script in which kubectl works, and return what it prints."""
        return self.run("sh", "-ec", script).stdout

    def popen(self, *command: str) -> subprocess.Popen[str]:
        """Start a command in the network of the cluster, to read what it prints."""
        return subprocess.Popen(
            [*self._inside("--net"), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(),
        )

    def kubectl_command(self, *words: str) -> Sequence[str]:
        """Return the words of a kubectl command, for `popen`."""
        return (str(self._bin / "kubectl"), *words)

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        """Return an object."""
        found: dict[str, Any] = json.loads(
            self.kubectl("--namespace", namespace, "get", kind, name, "-o", "json")
        )
        return found

    def apply(self, objects: Sequence[Mapping[str, Any]], *options: str) -> str:
        """Create or change objects."""
        return self.kubectl("apply", *options, "--filename", "-", stdin=yaml.safe_dump_all(objects))

    # Life

    def start(self) -> None:
        """Start everything, and wait until the machine takes pods."""
        self._enter_namespaces()
        self._write_files()
        self._spawn("etcd", "etcd", "--data-dir", str(self.root / "etcd"), "--log-level", "warn")
        self._spawn("containerd", "containerd", "--config", str(self.root / "containerd.toml"))
        key = self.root / "service-accounts.key"
        self._start_api_server(key)
        eventually(self._answers, within_s=START_S, what="the API server is ready")
        self._start_controllers(key)
        self._spawn(
            *("kubelet", self._program("kubelet"), "--config", str(self.root / "kubelet.yaml")),
            *("--kubeconfig", str(self.kubeconfig), "--hostname-override", "machine", "--node-ip", ADDRESS),
        )
        self._spawn("kube-proxy", self._program("kube-proxy"), "--config", str(self.root / "proxy.yaml"))
        self._spawn("coredns", self._program("coredns"), "-conf", str(self.root / "Corefile"))
        self._import_images()
        eventually(self._takes_pods, within_s=START_S, what="the machine is ready")
        self._create_volumes()

    def stop(self) -> None:
        """End every process, and remove their control groups."""
        if self._init is not None:
            self._init.kill()
            self._init.wait()
        for process in self._running.values():
            process.wait(timeout=60)
        for controller in Path("/sys/fs/cgroup").iterdir():
            _remove_groups(controller / self._groups)
        with suppress(OSError):
            Path("/var/lib/kubelet").rmdir()

    def _enter_namespaces(self) -> None:
        for name in ("log", "kubelet", "volumes"):
            (self.root / name).mkdir()
        Path("/var/lib/kubelet").mkdir(exist_ok=True)
        # All ends with this process, however that ends.
        unshare = ("setpriv", "--pdeathsig", "KILL", "unshare")
        flags = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
        log = (self.root / "init.log").open("wb")
        self._init = subprocess.Popen(
            [*unshare, *flags, "sh", "-c", INIT, "init", str(self.root), ADDRESS], stdout=log, stderr=log
        )
        ready = self.root / "ready"
        eventually(ready.exists, what=f"the namespaces are there, see {self.root}/init.log")
        # unshare has forked, and waits.
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
        self._first = int(children[0])
        for controller in Path("/sys/fs/cgroup").iterdir():
            if controller.is_dir() and (controller / "cgroup.procs").exists():
                (controller / self._groups).mkdir(exist_ok=True)

    def _inside(self, *namespaces: str) -> Sequence[str]:
        return ("nsenter", f"--target={self._first}", *namespaces, "--")

    def _environment(self) -> dict[str, str]:
        clean = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
        helm = {f"HELM_{each}_HOME": str(self.root / "helm") for each in ("CACHE", "CONFIG", "DATA")}
        path = f"{self._bin}:{os.environ['PATH']}"
        return {**clean, **helm, "PATH": path, "KUBECONFIG": str(self.kubeconfig)}

    def _program(self, name: str) -> str:
        return str(self._bin / name)

    def _spawn(self, name: str, *command: str) -> None:
        with (self.root / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [*self._inside("--mount", "--net", "--pid"), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                cwd=self.root,
            )

    def _log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")[-4000:]

    def _check_running(self) -> None:
        for name, process in self._running.items():
            assert process.poll() is None, f"{name} has ended: {self._log(name)}"

    def _answers(self) -> bool:
        self._check_running()
        return self.run(self._program("kubectl"), "get", "--raw", "/readyz", check=False).returncode == 0

    def _takes_pods(self) -> bool:
        self._check_running()
        path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "nodes", "-o", path, check=False).strip() == "True"

    def _start_api_server(self, key: Path) -> None:
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.root / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
        self._spawn(
            *("kube-apiserver", self._program("kube-apiserver")),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={ADDRESS}",
            f"--advertise-address={ADDRESS}",
            f"--cert-dir={self.root / 'certificates'}",
            f"--token-auth-file={self.root / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
        )

    def _start_controllers(self, key: Path) -> None:
        for name in ("kube-controller-manager", "kube-scheduler"):
            self._spawn(
                *(name, self._program(name), f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"),
                f"--authentication-kubeconfig={self.kubeconfig}",
                f"--authorization-kubeconfig={self.kubeconfig}",
                *(
                    (f"--service-account-private-key-file={key}",)
                    if name == "kube-controller-manager"
                    else ()
                ),
            )

    def _write_files(self) -> None:
        files = {
            "kubeconfig": {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [
                    {
                        "name": "it",
                        "cluster": {"server": f"https://{ADDRESS}:6443", "insecure-skip-tls-verify": True},
                    }
                ],
                "users": [{"name": "admin", "user": {"token": TOKEN}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
            },
            "kubelet.yaml": {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "address": ADDRESS,
                "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
                "authorization": {"mode": "AlwaysAllow"},
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{self._groups}",
                "clusterDNS": [ADDRESS],
                "clusterDomain": "cluster.local",
                "containerRuntimeEndpoint": f"unix://{self.root}/containerd.sock",
                "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%"},
                "failSwapOn": False,
                "resolvConf": str(self.root / "resolv.conf"),
            },
            "proxy.yaml": {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "clusterCIDR": PODS,
                "hostnameOverride": "machine",
                "clientConnection": {"kubeconfig": str(self.kubeconfig)},
                "conntrack": {"maxPerCore": 0},
            },
        }
        for name, content in files.items():
            (self.root / name).write_text(yaml.safe_dump(content))
        (self.root / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
        (self.root / "Corefile").write_text(
            f".:53 {{\n  bind {ADDRESS}\n  kubernetes cluster.local in-addr.arpa {{\n"
            f"    kubeconfig {self.kubeconfig} it\n    ttl 5\n  }}\n  errors\n}}\n"
        )
        # A wire for each pod: packets between pods pass the rules of kube-proxy, as those between machines.
        network = {
            "cniVersion": "0.4.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.root / "addresses"),
                        "ranges": [[{"subnet": PODS}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (self.root / "cni").mkdir()
        (self.root / "cni" / "10-pods.conflist").write_text(json.dumps(network))
        (self.root / "containerd.toml").write_text(f"""
version = 2
root = "{self.root}/containerd"
state = "{self.root}/containerd-state"
[grpc]
  address = "{self.root}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "{self.root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  # Containers on this machine may lack the capability to lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{self.root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
""")

    def _import_images(self) -> None:
        """Give containerd the image under test, and the program that holds the namespaces of a pod."""
        archive = self.root / "images.tar"
        source = self.root / "pause"
        source.mkdir()
        module = subprocess.run(
            ["go", "mod", "download", "-json", f"k8s.io/kubernetes@v{self._bin.parent.name}"],
            capture_output=True,
            check=True,
        )
        program = Path(json.loads(module.stdout)["Dir"]) / "build" / "pause" / "linux" / "pause.c"
        subprocess.run(["gcc", "-Os", "-static", "-o", source / "pause", program], check=True)
        (source / "Containerfile").write_text('FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n')
        subprocess.run(
            ["buildah", "bud", "--quiet", "--isolation", "chroot", "--tag", PAUSE, source],
            check=True,
            capture_output=True,
        )
        save = ["podman", "save", "--quiet", "--multi-image-archive", "--output", str(archive)]
        subprocess.run([*save, *self._tags(), PAUSE], check=True)
        socket = f"{self.root}/containerd.sock"
        eventually(Path(socket).exists, what="containerd listens")
        command = ("ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", str(archive))
        ran = subprocess.run(
            [*self._inside("--mount", "--net", "--pid"), *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        archive.unlink()

    def _tags(self) -> Sequence[str]:
        """Return the image's names: that of its version, and another to upgrade to."""
        version = str(yaml.safe_load((ROOT / "deploy/helm/alpacamq/Chart.yaml").read_text())["appVersion"])
        subprocess.run(["podman", "tag", f"{IMAGE}:latest", f"{IMAGE}:next"], check=True)
        return [f"{IMAGE}:{version}", f"{IMAGE}:next"]

    def _create_volumes(self) -> None:
        volumes = []
        for number in range(1, VOLUMES + 1):
            place = self.root / "volumes" / str(number)
            place.mkdir()
            selector = [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["machine"]}]
            volumes.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolume",
                    "metadata": {"name": f"volume-{number}"},
                    "spec": {
                        "capacity": {"storage": "20Gi"},
                        "accessModes": ["ReadWriteOnce"],
                        "persistentVolumeReclaimPolicy": "Retain",
                        "local": {"path": str(place)},
                        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": selector}]}},
                    },
                }
            )
        self.apply(volumes)


def _remove_groups(group: Path) -> None:
    if not group.is_dir():
        return
    for inner in [each for each in group.iterdir() if each.is_dir()]:
        _remove_groups(inner)

    def removed() -> bool:
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    eventually(removed, what=f"{group} is empty")


@contextmanager
def kubernetes(root: Path) -> Iterator[Kubernetes]:
    """Yield a running cluster; the logs of its programs stay in `root`."""
    cluster = Kubernetes(root.resolve())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
