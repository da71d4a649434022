"""What the person in front of the terminal has chosen to see: order, filter, part, place."""

from dataclasses import dataclass, replace
from enum import StrEnum

PARTS = ("all", "topics", "groups", "queues")
_FILTER_CHARACTERS = 100


class Sort(StrEnum):
    """The order of rows: largest first, but names by letter."""

    RATE = "rate"
    SIZE = "size"
    NAME = "name"


class Key(StrEnum):
    """Keys that are no letters."""

    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"
    PAGE_UP = "page up"
    PAGE_DOWN = "page down"
    HOME = "home"
    ESCAPE = "escape"
    ENTER = "enter"
    BACKSPACE = "backspace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Every key makes another one of it."""

    sort: Sort = Sort.RATE
    filter: str = ""
    part: str = PARTS[0]
    scroll: int = 0
    is_paused: bool = False
    is_help: bool = False
    is_typing: bool = False
    is_over: bool = False

    def after(self, key: str, page: int) -> "Look":
        """What is seen once a key was pressed; a page has so many lines."""
        if self.is_typing:
            return self._typed(key)
        if self.is_help and key != "q":
            return replace(self, is_help=False)
        match key:
            case "q":
                return replace(self, is_over=True)
            case "?" | "h":
                return replace(self, is_help=True)
            case "p" | " ":
                return replace(self, is_paused=not self.is_paused)
            case "s":
                order = list(Sort)
                return replace(self, sort=order[(order.index(self.sort) + 1) % len(order)], scroll=0)
            case "/":
                return replace(self, is_typing=True, filter="", scroll=0)
            case Key.ESCAPE:
                return replace(self, filter="", scroll=0)
            case Key.LEFT | Key.RIGHT:
                step = 1 if key == Key.RIGHT else -1
                part = PARTS[(PARTS.index(self.part) + step) % len(PARTS)]
                return replace(self, part=part, scroll=0)
            case Key.UP | Key.DOWN | Key.PAGE_UP | Key.PAGE_DOWN | Key.HOME | "j" | "k":
                return replace(self, scroll=max(0, self.scroll + _steps(key, page)))
            case _:
                return self

    def _typed(self, key: str) -> "Look":
        match key:
            case Key.ENTER:
                return replace(self, is_typing=False)
            case Key.ESCAPE:
                return replace(self, is_typing=False, filter="")
            case Key.BACKSPACE:
                return replace(self, filter=self.filter[:-1])
            case _ if len(key) == 1 and key.isprintable() and len(self.filter) < _FILTER_CHARACTERS:
                return replace(self, filter=self.filter + key)
            case _:
                return self


def _steps(key: str, page: int) -> int:
    return {
        Key.UP: -1,
        "k": -1,
        Key.DOWN: 1,
        "j": 1,
        Key.PAGE_UP: -page,
        Key.PAGE_DOWN: page,
        Key.HOME: -(1 << 30),
    }[key]
