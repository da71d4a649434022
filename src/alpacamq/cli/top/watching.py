"""Looking at a broker again and again, and showing what is seen."""

import argparse
import shutil
import sys
import threading
import time

from alpacamq.cli.asking import reach_http
from alpacamq.cli.output import Output, json_text
from alpacamq.cli.yaml import yaml
from alpacamq.client.http import HttpApi
from alpacamq.model.errors import AlpacaError

from .frame import frame, whole
from .look import Look, Sort
from .picture import Album, Picture, sample
from .terminal import Ended, Terminal

# With --once nobody wants to wait for a long interval.
_ONCE_S = 1.0
_HEAD_LINES = 3
# How often the screen is looked after when no key is pressed.
_TICK_S = 0.25


def print_pictures(parsed: argparse.Namespace, output: Output) -> None:
    """Print a picture, or one after the other."""
    album = Album()
    interval_s = parsed.interval / 1000
    with reach_http(parsed) as api:
        album.add(sample(api, time.monotonic()))
        while True:
            time.sleep(min(interval_s, _ONCE_S) if parsed.once else interval_s)
            _print(album.add(sample(api, time.monotonic())), parsed, output)
            if parsed.once:
                return
            sys.stdout.flush()


def _print(picture: Picture, parsed: argparse.Namespace, output: Output) -> None:
    match output.form:
        case "json":
            print(json_text(picture.plain(), indent=2 if parsed.once else None))
        case "yaml":
            print(yaml(picture.plain()) if parsed.once else f"---\n{yaml(picture.plain())}")
        case _:
            columns = shutil.get_terminal_size((0, 0)).columns
            look = Look(sort=Sort(parsed.sort), filter=parsed.filter)
            print("\n".join(whole(picture, look, columns, is_coloured=output.is_coloured)))


def watch(parsed: argparse.Namespace, output: Output) -> None:
    """Be a live view until told to stop."""
    interval_s = parsed.interval / 1000
    with reach_http(parsed) as api:
        # Before the screen is taken: a broker that is not there is said in plain words.
        first = Album().add(sample(api, time.monotonic()))
    terminal = Terminal()
    observer = _Observer(parsed, interval_s, first)
    observer.start()
    look = Look(sort=Sort(parsed.sort), filter=parsed.filter)
    picture: Picture | None = first
    try:
        with terminal.taken():
            while not look.is_over:
                if not look.is_paused:
                    picture = observer.picture
                size = terminal.size
                terminal.show(
                    frame(picture, look, size, notice=observer.notice, is_coloured=output.is_coloured)
                )
                for key in terminal.keys(min(interval_s, _TICK_S)):
                    look = look.after(key, max(size.lines - _HEAD_LINES, 1))
    except Ended:
        pass
    finally:
        observer.stop()


class _Observer:
    """Asks the broker in a thread of its own: keys are answered also while the broker is not."""

    def __init__(self, parsed: argparse.Namespace, interval_s: float, first: Picture) -> None:
        self.picture = first
        self.notice = ""
        self._parsed = parsed
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._observe, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _observe(self) -> None:
        album = Album()
        with reach_http(self._parsed) as api:
            while not self._stopped.is_set():
                self._look(api, album)
                self._stopped.wait(self._interval_s)

    def _look(self, api: HttpApi, album: Album) -> None:
        try:
            seen = album.add(sample(api, time.monotonic()))
        except AlpacaError as error:
            self.notice = str(error)
        else:
            self.picture, self.notice = seen, ""
