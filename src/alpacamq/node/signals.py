"""The signals that stop a node, or the processes of a machine."""

import asyncio
import signal


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
