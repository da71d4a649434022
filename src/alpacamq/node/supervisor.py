"""Tells the service manager that the node is starting, ready, alive and stopping.

Speaks systemd's notification protocol (sd_notify(3)) to the socket in NOTIFY_SOCKET. Without a service
manager it does nothing.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

from alpacamq.telemetry.logs import get_logger

log = get_logger(__name__)

SOCKET_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE = "WATCHDOG_USEC"
WATCHDOG_PID_VARIABLE = "WATCHDOG_PID"
# A start takes as long as recovery does; each message allows this much more time.
EXTENSION_SECONDS = 60
INTERVAL_SECONDS = 10.0
# Of the watchdog's interval: a late message is followed by another one in time.
_WATCHDOG_SHARE = 3
_MICROSECONDS = 1_000_000


class Supervisor:
    """The service manager of this process. `run` reports from the event loop, so a blocked loop is found."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        """Without an `address` nothing is reported; without `watchdog_seconds` the watchdog is off."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._interval = INTERVAL_SECONDS
        if watchdog_seconds is not None:
            self._interval = min(INTERVAL_SECONDS, watchdog_seconds / _WATCHDOG_SHARE)
        self._is_ready = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Supervisor":
        """Return the service manager that the environment names."""
        address = environ.get(SOCKET_VARIABLE, "")
        interval = environ.get(WATCHDOG_VARIABLE, "")
        is_for_us = environ.get(WATCHDOG_PID_VARIABLE, str(os.getpid())) == str(os.getpid())
        has_watchdog = is_for_us and interval.isascii() and interval.isdigit() and int(interval) > 0
        return cls(address, int(interval) / _MICROSECONDS if has_watchdog else None)

    @property
    def is_present(self) -> bool:
        return bool(self._address)

    async def run(self, start_step: Callable[[], str]) -> None:
        """Report until cancelled that the node is alive, and until it is ready, what its start is doing."""
        while self._address:
            if self._is_ready:
                self._send("WATCHDOG=1")
            else:
                extension = EXTENSION_SECONDS * _MICROSECONDS
                self._send("WATCHDOG=1", f"EXTEND_TIMEOUT_USEC={extension}", f"STATUS={start_step()}")
            await asyncio.sleep(self._interval)

    def ready(self) -> None:
        """Report that the node serves."""
        self._is_ready = True
        self._send("READY=1", "STATUS=serving")

    def stopping(self) -> None:
        """Report that the node has begun to stop."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifications:
                notifications.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            log.warning("service_manager_not_notified", reason=str(error))
