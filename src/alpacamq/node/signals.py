"""The signals that stop a node, or the processes of a machine."""

import asyncio
import signal


def stop_on_signals(stop: asyncio.Event) -> None:
    """Set an event on SIGTERM, on Ctrl-C, and when the terminal is closed unless nohup has it ignored."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
