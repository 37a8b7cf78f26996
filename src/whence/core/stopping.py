"""Stopping work that is under way: the code that does the work asks, at many points, whether it is still wanted.

    with stopping.stoppable(event.is_set):
        whence.explain(...)  # raises Stopped soon after the event is set; the model is given back as it was

Work outside such a scope is never stopped. The question is asked by the thread that does the work, so nothing is
interrupted in the middle of an operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Stopped(BaseException):
    """The work is no longer wanted. Like KeyboardInterrupt, it is no Exception, so no handler of errors hides it."""


_unwanted: ContextVar[Callable[[], bool] | None] = ContextVar("unwanted", default=None)


@contextmanager
def stoppable(unwanted: Callable[[], bool]) -> Iterator[None]:
    """A scope whose work raises Stopped at its next check once `unwanted()` is true."""
    token = _unwanted.set(unwanted)
    try:
        yield
    finally:
        _unwanted.reset(token)


def may_stop() -> bool:
    """Whether the work under way is inside a scope that may stop it."""
    return _unwanted.get() is not None


def check() -> None:
    """Raise Stopped where the work under way is no longer wanted."""
    unwanted = _unwanted.get()
    if unwanted is not None and unwanted():
        raise Stopped("the work was stopped")
