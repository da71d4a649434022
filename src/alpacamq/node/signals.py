"""The signals that stop a node or the processes of a machine, and the end of the parent process."""

import asyncio
import os
import signal
import sys

from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)


def stop_on_signals(stop: asyncio.Event, *, is_supervised: bool = False) -> None:
    """Set an event on SIGTERM, on Ctrl-C, and on SIGHUP: when the terminal is closed.

    SIGHUP does nothing under nohup, and under a service manager, where it means to load files again.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if is_supervised:
        loop.add_signal_handler(signal.SIGHUP, lambda: None)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop.set)


def stop_with_parent(stop: asyncio.Event) -> None:
    """Set an event when standard input ends: the parent, which holds its other end, has ended in any way."""
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            log.warning("parent_ended")
            stop.set()

    loop.add_reader(descriptor, read)
