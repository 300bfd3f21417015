"""What can go wrong, and whose fault it is. The docstring of an error is its message."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class PerdureError(Exception):
    """Something went wrong in perdure."""

    def __init__(self, detail: str = "") -> None:
        message = (type(self).__doc__ or type(self).__name__).strip()
        super().__init__(f"{message} {detail}" if detail else message)
        self.detail = detail


# --- the caller's fault: nothing was changed -------------------------------------------------


class BadInput(PerdureError, ValueError):
    """This input cannot be accepted."""


class Unserialisable(BadInput):
    """This value is neither JSON nor a pydantic model."""


class TooLarge(BadInput):
    """This value is over the size limit."""


class BadName(BadInput):
    """A name is 1 to 512 bytes of UTF-8 without NUL."""


class BadSchedule(BadInput):
    """This schedule can never be due."""


class BadStoreUrl(BadInput):
    """A store URL is sqlite:///FILE, sqlite:///:memory: or postgresql://…"""


class NotFound(PerdureError, LookupError):
    """There is no such thing in the store."""


class NoFiber(PerdureError):
    """This needs a running fiber, and none is running here."""


class AmbiguousStep(PerdureError):
    """Two tasks take steps in one scope at once; give each its own with `gather` or `scope`."""


class OpenScopes(PerdureError):
    """A stash covers the whole fiber, so sibling scopes must be finished first."""


class Reentrant(PerdureError):
    """A session called itself through the runtime and would wait for itself for ever."""


class FiberClosed(PerdureError):
    """This fiber has ended; it can write nothing more."""


# --- the world's fault: try again, or look ---------------------------------------------------


class StoreUnavailable(PerdureError):
    """The store could not be written; nothing that was reported as durable is lost."""

    again: Callable[[], Awaitable[int]] | None = None
    """Tries the same commit once more. It is applied at most once, however often it is tried."""


class StoreInUse(PerdureError):
    """Another process is the host of this SQLite file."""


class StoreTooNew(PerdureError):
    """The store was written by a newer version of perdure; upgrade this one."""


class Conflict(PerdureError):
    """The store refused a commit; nothing of it was applied."""


class OwnedElsewhere(PerdureError):
    """Another live host owns this session."""


class Draining(PerdureError):
    """This host is shutting down and takes no more work."""


# --- outcomes: values that are raised --------------------------------------------------------


class Uncertain(PerdureError):
    """The operation may have executed; verify before retrying."""

    def __init__(self, op_id: str, kind: str) -> None:
        super().__init__(f"(operation {op_id}, {kind!r})")
        self.op_id = op_id
        self.kind = kind


class OpFailed(PerdureError):
    """The operation was tried and failed."""

    def __init__(self, op_id: str, kind: str, error: str) -> None:
        super().__init__(f"({kind!r}: {error})")
        self.op_id = op_id
        self.kind = kind
        self.error = error


class Diverged(PerdureError):
    """The code asks for another operation at a place where an irreversible one is recorded."""

    def __init__(self, op_id: str, recorded: str, asked: str, place: tuple[str, int]) -> None:
        super().__init__(f"(recorded {recorded}, asked {asked}, operation {op_id})")
        self.op_id = op_id
        self.place = place
        self.recorded = recorded
        self.asked = asked


class InProgress(PerdureError):
    """The other side still works on this key (409, 425); it is asked again later."""

    def __init__(self, retry_after: float = 1.0) -> None:
        super().__init__(f"(again in {retry_after:g} s)")
        self.retry_after = retry_after


class FiberFailed(PerdureError):
    """The fiber ended with an error."""

    def __init__(self, fiber_id: str, error: str) -> None:
        super().__init__(f"({fiber_id}: {error})")
        self.fiber_id = fiber_id
        self.error = error


class FiberCancelled(PerdureError):
    """The fiber was cancelled."""


class Interrupted(PerdureError):
    """The fiber waits for an answer: retry, continue or abandon."""


class Unrecovered(PerdureError):
    """The fiber was cut, and its agent has no `on_fiber_recovered` that takes it up."""


class Exhausted(PerdureError):
    """The fiber was recovered again and again without progress."""


class Abandoned(PerdureError):
    """A person gave this fiber up."""


# --- unwinding -------------------------------------------------------------------------------


class Fenced(BaseException):
    """Another host owns this session. Unwind; write nothing."""
