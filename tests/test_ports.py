"""Tests that run at the same time, also those of two suites, never use the same port."""

import socket
import subprocess
import sys

from .ports import free_ports

HOLD = "from tests.ports import free_ports; print(*free_ports(50), flush=True); input()"


def test_processes_have_no_port_in_common() -> None:
    command = [sys.executable, "-c", HOLD]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    taken = list(free_ports(50))
    for holder in holders:
        assert holder.stdout
        taken += map(int, holder.stdout.readline().split())
    for holder in holders:
        holder.communicate("\n")
    assert len(set(taken)) == len(taken) == 250


def test_a_port_is_not_given_again_soon_nor_while_something_listens_on_it() -> None:
    (used,) = free_ports(1)
    with socket.create_server(("127.0.0.1", used)):
        assert used not in free_ports(500) + free_ports(399)
    assert used in free_ports(500) + free_ports(400)
