"""`alpacamq serve --processes N`: a cluster of several broker processes on this machine.

Each process has its own id, data directory and ports, counted from those of the configuration. The first
three vote on the metadata. This process starts them, starts one again that has failed, and stops them all at
a signal. They stop by themselves when this process is killed: their standard input ends then.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from alpacamq.model.address import Address

from .config import NodeConfig
from .options import ConfigError, variable_of
from .signals import stop_on_signals
from .supervisor import SOCKET_VARIABLE, WATCHDOG_VARIABLE, Supervisor

VOTERS = 3
MAX_PROCESSES = 64
# Ports of process 1 are those of the configuration, of process 2 this many above, and so on.
PORT_STEP = 10
READY = b" is ready after "
STOP_SECONDS = 30.0
# Long enough to see the others take over, and for one that fails again and again to take little of a core.
RESTART_SECONDS = 10.0


class Process:
    """One broker process, its addresses and its output."""

    def __init__(self, number: int, config: NodeConfig, count: int) -> None:
        self.id = config.node.id + number
        self.directory = config.node.data_dir / f"node-{self.id}"
        self.kafka = _port(config.kafka.listen, number)
        self.http = _port(config.http.listen, number)
        self.sqs = _port(config.sqs.listen, number)
        self.registry = _port(config.registry.listen, number)
        self.grpc = _port(config.grpc.listen, number)
        self.cluster = _port(config.cluster.listen, number)
        self._number = number
        self._count = count
        self._config = config
        self._process: asyncio.subprocess.Process
        self._is_stopped = asyncio.Event()
        self.is_ready = asyncio.Event()
        # Whether its first start is over: it is ready, or has ended.
        self.is_started = asyncio.Event()
        self.last_lines: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def arguments(self) -> list[str]:
        """Return the options of this process."""
        nodes = [
            f"{self._config.node.id + number}@{_port(self._config.cluster.listen, number)}"
            for number in range(min(self._count, VOTERS))
        ]
        return [
            *("--node-id", str(self.id)),
            *("--data-dir", str(self.directory)),
            *("--kafka", str(self.kafka)),
            *("--http", str(self.http)),
            *("--sqs", str(self.sqs)),
            *("--registry", str(self.registry)),
            *("--grpc", str(self.grpc)),
            *("--cluster", str(self.cluster)),
            *("--cluster-nodes", ",".join(nodes)),
        ]

    def listeners(self) -> dict[str, str]:
        """Return the addresses of the further listeners of this process, as environment variables."""
        return {
            variable_of(f"listeners.{name}.{field}"): str(_port(address, self._number))
            for name, listener in self._config.listeners.items()
            for field, address in (("listen", listener.listen), ("advertised", listener.advertised))
            if address is not None
        }

    async def start(self, options: Sequence[str]) -> None:
        """Start the process with `options` of the user before its own."""
        # The service manager hears this process.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in (SOCKET_VARIABLE, WATCHDOG_VARIABLE)
        }
        if self._number >= VOTERS:
            environment[variable_of("cluster.roles")] = "broker"
        environment |= self.listeners()
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "alpacamq.node.main", "serve", "--child", *options, *self.arguments()),
            env=environment,
            stdin=asyncio.subprocess.PIPE,  # nothing is ever written; it ends with this process
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the parent, which stops them in order
        )

    async def run(self) -> int:
        """Pass its log on until it ends; return its exit code."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(self._process.stdout))
            tasks.create_task(self._pass_on(self._process.stderr))
        self.is_started.set()
        return await self._process.wait()

    async def run_again(self, options: Sequence[str]) -> int:
        """Start the process again after a while, unless it is to stop; return its exit code."""
        try:
            async with asyncio.timeout(RESTART_SECONDS):
                await self._is_stopped.wait()
            return 0
        except TimeoutError:
            self.is_ready.clear()
        await self.start(options)
        if self._is_stopped.is_set():
            self.stop()
        return await self.run()

    def stop(self) -> None:
        """Ask the process to stop."""
        self._is_stopped.set()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def reload(self) -> None:
        """Let the process load its certificates again."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        """End the process at once."""
        if self._process.returncode is None:
            self._process.kill()

    async def _watch(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            if READY in line:
                self.is_ready.set()
                self.is_started.set()

    async def _pass_on(self, log: asyncio.StreamReader) -> None:
        while True:
            try:
                line = await log.readline()
            except ValueError:  # longer than the buffer
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self.last_lines = [*self.last_lines[-4:], text]
            print(f"node {self.id}: {text}", file=sys.stderr)


async def serve_processes(
    config: NodeConfig,
    count: int,
    options: Sequence[str],
    started_at: float,
    supervisor: Supervisor,
) -> int:
    """Run `count` processes until a signal; return the exit code. `supervisor` learns when they serve."""
    if not 2 <= count <= MAX_PROCESSES:
        raise ConfigError(f"--processes must be from 2 to {MAX_PROCESSES}, not {count}")
    if config.cluster.is_enabled:
        raise ConfigError("--processes makes a cluster of this machine; it does not go with cluster.nodes")
    stop = asyncio.Event()
    stop_on_signals(stop, is_supervised=supervisor.is_present)
    processes = [Process(number, config, count) for number in range(count)]
    if supervisor.is_present or config.tls.certificate is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, processes)
    running: dict[asyncio.Task[int], Process] = {}

    def start_step() -> str:
        return f"{sum(process.is_ready.is_set() for process in processes)} of {count} nodes are ready"

    async def report() -> None:
        """Print the addresses once all processes serve; tell the service manager once those that run do."""
        for process in processes:
            await process.is_started.wait()
        if all(process.is_ready.is_set() for process in processes):
            _announce(config, processes, started_at)
        if any(process.is_ready.is_set() for process in processes):
            supervisor.ready()

    reporting = [asyncio.create_task(supervisor.run(start_step)), asyncio.create_task(report())]
    try:
        for process in processes:
            await process.start(options)
            running[asyncio.create_task(process.run())] = process
        stopping = asyncio.create_task(stop.wait())
        while running and not stop.is_set():
            await asyncio.wait({stopping, *running}, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                process = running.pop(task)
                if stop.is_set():
                    continue
                ended = f"Node {process.id} has ended with exit code {task.result()}"
                # One that was asked to stop, or cannot start, would only do so again.
                if task.result() != 0 and process.is_ready.is_set():
                    print(f"{ended}; it starts again in {RESTART_SECONDS:.0f} s.", flush=True)
                    running[asyncio.create_task(process.run_again(options))] = process
                else:
                    print(f"{ended}.", flush=True)
        stopping.cancel()
        return 0 if stop.is_set() else 1
    finally:
        supervisor.stopping()
        for process in processes:
            process.stop()
        if running:
            _, left = await asyncio.wait(running, timeout=STOP_SECONDS)
            for task in left:
                running[task].kill()
            if left:
                await asyncio.wait(left)
        for reports in reporting:
            reports.cancel()


def _reload(processes: Sequence[Process]) -> None:
    """Let all processes load their certificates again."""
    for process in processes:
        process.reload()


def _announce(config: NodeConfig, processes: Sequence[Process], started_at: float) -> None:
    """Print the addresses, and commands to try."""
    beside = Path(sys.argv[0]).with_name("alpacactl")
    alpacactl = str(beside) if beside.is_file() else "alpacactl"
    print(f"{len(processes)} nodes are ready after {time.monotonic() - started_at:.2f} s\n")
    print(f"  {'node':<6}{'kafka':<19}{'http and console':<19}{'sqs':<19}{'registry':<19}{'grpc':<19}process")
    for process in processes:
        addresses = (process.kafka, process.http, process.sqs, process.registry, process.grpc)
        print(f"  {process.id:<6}{''.join(f'{each!s:<19}' for each in addresses)}{process.pid}")
    print(f"\n  data    {config.node.data_dir.absolute()}\n\nTry:")
    print(f"  echo hello | {alpacactl} --broker {processes[0].kafka} produce greetings")
    print(f"  {alpacactl} --broker {processes[-1].kafka} consume greetings --exit")
    any_node = ",".join(str(process.http) for process in processes)
    print(f"  {alpacactl} --http {any_node} cluster status")
    pause = f"{RESTART_SECONDS:.0f} s"
    print(f"  kill -9 {processes[0].pid}    # the others take over, and it starts again after {pause}")
    print("\nCtrl-C stops all of them.", flush=True)


def _port(address: Address, number: int) -> Address:
    return Address(address.host, address.port + PORT_STEP * number) if address.port else address
