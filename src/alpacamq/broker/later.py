"""Results that are passed on by a callback instead of a task."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Later(Generic[T]):
    """A result that is not known yet: a value, an exception, or a coroutine that does the rest.

    It has one reader, which gives it a callback or awaits it, and gets the result in the turn of the event
    loop in which it becomes known. A task costs several turns.
    """

    __slots__ = ("_act", "_cancel", "_changes", "_is_known", "_result", "is_cancelled")

    def __init__(self, cancel: Callable[[], None] | None = None) -> None:
        """`cancel` is called if the reader goes without the result, although that may be known by then."""
        self._cancel = cancel
        self._act: Callable[[Any], None] | None = None
        # Applied to the result, in order; with whether that is for values only.
        self._changes: list[tuple[Callable[[Any], Any], bool]] | None = None
        self._is_known = False
        self._result: Any = None
        self.is_cancelled = False

    @classmethod
    def of(cls, result: Exception | Coroutine[Any, Any, U]) -> "Later[U]":
        """Return an exception, or what a coroutine returns."""
        later: Later[U] = Later()
        later.set_result(result)
        return later

    def done(self) -> bool:
        """Return whether nothing is to be passed on any more."""
        return self._is_known or self.is_cancelled

    def value(self) -> T | None:
        """Return the value if it is known; None for anything that has to be awaited."""
        if isinstance(self._result, Exception | Coroutine):
            return None
        return self._result  # type: ignore[no-any-return]

    def set_result(self, result: T | Exception | Coroutine[Any, Any, T]) -> None:
        """Pass on the result, unless the reader no longer waits."""
        if self.is_cancelled:
            if isinstance(result, Coroutine):
                result.close()
            return
        self._is_known = True
        known = result if self._changes is None else self._changed(result)
        if self._act is None:
            self._result = known
        else:
            act, self._act = self._act, None
            act(known)

    def _changed(self, known: Any) -> Any:
        """Apply the changes to a result."""
        changes, self._changes = self._changes, None
        for change, is_for_values in changes or ():
            if is_for_values:
                if isinstance(known, Exception):
                    continue
                if isinstance(known, Coroutine):
                    known = _rest(known, change)
                    continue
            try:
                known = change(known)
            except Exception as error:  # noqa: BLE001 - for the reader
                known = error
        return known

    def when_done(self, act: Callable[[Any], None]) -> None:
        """Call `act` with the result, now if it is known."""
        if self._is_known:
            act(self._result)
        else:
            self._act = act

    def then(self, change: Callable[[Any], U | Exception | Coroutine[Any, Any, U]]) -> "Later[U]":
        """Change the result, also if it is an exception or a coroutine; what `change` raises is the result.

        Returns this object, whose reader gets the changed result.
        """
        if self._changes is None and not self._is_known:
            self._changes = [(change, False)]
            return self  # type: ignore[return-value]
        return self._add(change, is_for_values=False)

    def map(self, change: Callable[[T], U | Coroutine[Any, Any, U]]) -> "Later[U]":
        """Do the same as `then` for a value; an exception is passed on."""
        if self._changes is None and not self._is_known:
            self._changes = [(change, True)]
            return self  # type: ignore[return-value]
        return self._add(change, is_for_values=True)

    def _add(self, change: Callable[[Any], Any], *, is_for_values: bool) -> "Later[Any]":
        if self._changes is None:
            self._changes = [(change, is_for_values)]
        else:
            self._changes.append((change, is_for_values))
        if self._is_known:
            self._result = self._changed(self._result)
        return self

    def cancel(self) -> None:
        """Go without the result."""
        if not self.is_cancelled:
            self.is_cancelled = True
            # They may refer to the reader, and that to this object.
            cancel, self._cancel = self._cancel, None
            self._act = self._changes = None
            if cancel is not None:
                cancel()

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        if not self._is_known:
            known: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.when_done(lambda result: None if known.done() else known.set_result(result))
            try:
                self._result = await known
            except asyncio.CancelledError:
                if known.done() and not known.cancelled() and isinstance(known.result(), Coroutine):
                    known.result().close()
                self.cancel()
                raise
        result = self._result
        if isinstance(result, Coroutine):
            result = await result
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]


async def _rest(work: Coroutine[Any, Any, T], change: Callable[[T], U | Coroutine[Any, Any, U]]) -> U:
    changed = change(await work)
    return await changed if isinstance(changed, Coroutine) else changed
