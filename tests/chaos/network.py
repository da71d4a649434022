"""A network of the nodes' own, whose wires can be cut in each direction. Needs root.

Each node has a network namespace with one interface on a bridge; clients reach the nodes over the bridge.
A direction is cut by sending its packets to an unused hardware address: they are lost without an
error, as on a broken wire.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

ANONYMOUS_CALLER = "02:00:00:00:00:01"


def missing_for_cuts() -> str | None:
    """Why the network cannot be cut here; None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in ("ip", "nsenter"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    tried = subprocess.run(["ip", "netns", "add", name := f"amq-try-{os.getpid()}"], capture_output=True)
    if tried.returncode:
        return "needs network namespaces"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class Wires:
    """The network of nodes that have namespaces with an interface on a common bridge each."""

    def __init__(self) -> None:
        self._cut: set[tuple[int, int]] = set()

    def address(self, node: int) -> str:
        raise NotImplementedError

    def launcher(self, node: int) -> Sequence[str]:
        """Return the command that runs another in a node's network."""
        raise NotImplementedError

    def cut(self, directions: Iterable[tuple[int, int]]) -> None:
        """Lose every packet from the first to the second node of each pair."""
        for sender, receiver in directions:
            anonymous = ("lladdr", ANONYMOUS_CALLER, "nud", "permanent")
            self._set_neighbour(sender, "replace", receiver, *anonymous)
            self._cut.add((sender, receiver))

    def heal(self) -> None:
        """Deliver all packets again."""
        for sender, receiver in self._cut:
            self._set_neighbour(sender, "delete", receiver)
        self._cut.clear()

    def _set_neighbour(self, node: int, action: str, other: int, *words: str) -> None:
        place = (self.address(other), "dev", "eth0")
        _run(*self.launcher(node), "ip", "neighbour", action, *place, *words)


class Network(Wires):
    """The namespaces of nodes 1 to `count`."""

    def __init__(self, count: int) -> None:
        super().__init__()
        number = os.getpid() % 250
        self._prefix = f"10.209.{number}"
        # Names of interfaces have at most 15 characters.
        self._name = f"amq{os.getpid()}"
        self._nodes = range(1, count + 1)

    def address(self, node: int) -> str:
        return f"{self._prefix}.{node}"

    def launcher(self, node: int) -> Sequence[str]:
        return ("nsenter", f"--net=/var/run/netns/{self._name}-{node}")

    def build(self) -> None:
        """Create namespaces, wires and the bridge."""
        _ip("link", "add", self._name, "type", "bridge")
        _ip("address", "add", f"{self._prefix}.254/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        for node in self._nodes:
            space, wire = f"{self._name}-{node}", f"{self._name}w{node}"
            _ip("netns", "add", space)
            _ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", wire, "master", self._name, "up")
            _ip("-n", space, "address", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "set", "eth0", "up")

    def remove(self) -> None:
        """Remove everything that `build` has created."""
        for node in self._nodes:
            _ip("link", "delete", f"{self._name}w{node}", check=False)
            _ip("netns", "delete", f"{self._name}-{node}", check=False)
        _ip("link", "delete", self._name, check=False)


def _ip(*words: str, check: bool = True) -> None:
    _run("ip", *words, check=check)


def _run(*command: str, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True, timeout=30)
