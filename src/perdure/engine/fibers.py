"""A fiber: named work whose row exists exactly as long as it may be running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..core.errors import AmbiguousStep, BadInput, FiberClosed, NoFiber, StoreUnavailable
from ..core.facts import Effect, FiberRow, OpRow
from ..core.identity import Place
from ..core.names import check_name
from ..core.writes import Progress, Stash, Write
from .ops import OUTCOME_UNKNOWN, Ask, DidNotHappen, Happened, Op, perform
from .scopes import Scopes
from .values import EMPTY_ARGS, decode, encode

if TYPE_CHECKING:
    from ..ports import Ledger
    from .live import Live

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

log = logging.getLogger("perdure")

OPS_PER_READ = 256
EFFECTS = ("read", "keyed", "once")

_CURRENT: ContextVar[Fiber | None] = ContextVar("perdure_fiber", default=None)


def current_fiber() -> Fiber:
    """The fiber that this task runs in. Raises `NoFiber` outside one."""
    fiber = _CURRENT.get()
    if fiber is None:
        raise NoFiber
    return fiber


def fiber_here() -> Fiber | None:
    """The fiber that this task runs in, if it runs in one."""
    return _CURRENT.get()


def leave_fiber() -> None:
    """Methods and hooks are in no fiber, also when a fiber called or woke their session."""
    _CURRENT.set(None)


class Fiber:
    """What a fiber's body works with: its checkpoint, its ops and its branches."""

    def __init__(self, live: Live, row: FiberRow, *, entered_again: bool) -> None:
        self._live = live
        self.row = row
        self.scopes = Scopes(decode(row.steps))
        self.in_flight: set[Op] = set()
        self.doubted: set[str] = set()
        self.proved = asyncio.Event()
        self.closed = False
        self.stopping = False
        self.task: asyncio.Task[None] | None = None
        self._fresh = not entered_again
        self._wrote_ops = entered_again
        self._stalled = row.stalled
        self._stash = row.stash
        self._stash_steps = row.steps
        self._stashes = 0
        self._rows: dict[tuple[str, int], OpRow] = {}
        self._read_to: dict[str, int] = {}

    # --- what a body uses

    @property
    def id(self) -> str:
        return self.row.id

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def attempt(self) -> int:
        """How often it was recovered; 0 in its first life."""
        return self.row.attempt

    @property
    def stashed(self) -> Any:
        """The checkpoint as it is now: what an earlier life left, or the last `stash`."""
        return decode(self._stash)

    def stash(self, data: Any) -> Awaitable[None]:
        """Replace the checkpoint. Encoded and queued at once; once awaited, a crash anywhere
        later finds `data`."""
        writes = self._stash_writes(data)
        number = self._stashes
        queued = asyncio.ensure_future(self._live.commit(*writes))
        queued.add_done_callback(_retrieve)
        return _Stashed(self, queued, number)

    def stash_now(self, data: Any) -> None:
        """Replace the checkpoint and block until it is on disk."""
        self._live.commit_now(*self._stash_writes(data))

    async def op(
        self,
        kind: str,
        call: Callable[..., Awaitable[T] | T],
        *args: Any,
        effect: Effect,
        key: str | None = None,
        key_lives: float | None = None,
        handle: Any = None,
        verify: Callable[..., Awaitable[Happened | DidNotHappen | None]] | None = None,
        reattach: Callable[[Any, Any], Awaitable[T]] | None = None,
        resume: Callable[[list[Any]], Awaitable[T]] | None = None,
        unknown: tuple[type[BaseException], ...] = OUTCOME_UNKNOWN,
        returns: type[T] | None = None,
    ) -> T:
        """Perform `call(*args)` so that a crash neither loses nor silently repeats it.

        The result is what a replay would give: JSON, or a model if `call` or `returns` says so.
        Raises `Uncertain` if nobody can know whether it happened, `OpFailed` if it failed.
        """
        check_name(kind, "the kind of an op")
        if effect not in EFFECTS:
            raise BadInput(f"(the effect of {kind} is one of {', '.join(EFFECTS)}, not {effect!r})")
        ask = Ask(
            kind=kind,
            call=call,
            args=args,
            encoded=encode(args, f"the arguments of {kind}") if args else EMPTY_ARGS,
            effect=effect,
            key=None if key is None else check_name(key, "the key of an op"),
            key_lives=self._live.host.settings.key_lives if key_lives is None else key_lives,
            handle=handle,
            verify=verify,
            reattach=reattach,
            resume=resume,
            unknown=unknown,
            shape=returns if returns is not None and hasattr(returns, "model_validate_json") else None,
        )
        self.check_open()
        return await perform(self, ask)

    async def gather(self, *branches: Coroutine[Any, Any, T]) -> list[T]:
        """Run the branches beside each other, each in its own scope. One step of this scope.

        All branches end before it returns; then the error of the first one that failed is raised.
        A branch is never cut in mid-op because another one failed.
        """
        scope = self.scopes.here()
        try:
            step = self.scopes.begin(scope)
        except AmbiguousStep:
            for branch in branches:
                branch.close()
            raise

        async def within(number: int, branch: Coroutine[Any, Any, T]) -> T:
            with self.scopes.branch(scope, step, number):
                return await branch

        tasks = [asyncio.create_task(within(*one)) for one in enumerate(branches)]
        try:
            return await _all_ended(tasks)
        finally:
            self.scopes.finish(scope)

    @asynccontextmanager
    async def scope(self, name: str) -> AsyncGenerator[None]:
        """A branch with a name of its own: its steps are counted apart."""
        check_name(name, "a scope")
        with self.scopes.child(name):
            yield

    # --- what the engine uses

    @property
    def label(self) -> str:
        return f"{self.row.name} ({self.row.id})"

    @property
    def session(self) -> str:
        return self.row.session

    @property
    def ledger(self) -> Ledger:
        return self._live.host.store

    @property
    def wrote_ops(self) -> bool:
        return self._wrote_ops

    def now(self) -> int:
        return self._live.host.store.now()

    async def sleep(self, seconds: float) -> None:
        await self._live.host.clock.sleep(seconds)

    async def patiently(self, read: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Read, and wait for a store that is away."""
        return await self._live.patiently(read, *args, **kwargs)

    async def may_act(self) -> None:
        """Return only while this host certainly owns the session."""
        self.check_open()
        if not self._live.host.tenure.in_force:
            await self._live.assure()
            self.check_open()

    async def commit(self, *writes: Write) -> None:
        """Commit, and wait for a store that is away: what happened must not be forgotten."""
        if self.closed:
            raise FiberClosed(f"({self.label})")
        self._wrote_ops = True
        await self._live.insist(*writes)

    async def commit_late(self, *writes: Write) -> None:
        """Commit what became known after the fiber's end. It never reopens it."""
        await self._live.insist(*writes)

    @property
    def never_called(self) -> list[OpRow]:
        """The ops whose intent is committed, or is being committed, and that provably did not start."""
        return [op.row for op in self.in_flight if not op.called]

    def progress(self) -> tuple[Write, ...]:
        """The write that belongs to progress, if attempts were being counted."""
        self.proved.set()
        if not self._stalled:
            return ()
        self._stalled = 0
        return (Progress(self.id),)

    def may_have_recorded(self, place: Place) -> bool:
        """False if the ledger certainly holds nothing at `place`: no need to look."""
        return not self._fresh or (place.scope, place.step) in self._rows

    async def recorded(self, place: Place) -> OpRow | None:
        """What the ledger holds at `place`, read a stretch at a time."""
        at = (place.scope, place.step)
        if at not in self._rows and not self._fresh and place.step >= self._read_to.get(place.scope, 0):
            read = self.ledger.ops_from
            rows = await self.patiently(read, self.id, place.scope, place.step, OPS_PER_READ)
            self._rows.update({(row.scope, row.step): row for row in rows})
            whole = len(rows) < OPS_PER_READ
            self._read_to[place.scope] = 1 << 62 if whole else rows[-1].step + 1
        return self._rows.get(at)

    def remember(self, row: OpRow) -> None:
        """An op with an explicit key may be asked for again in the same life."""
        if row.scope.startswith("="):
            self._rows[row.scope, row.step] = row

    def enter(self) -> None:
        _CURRENT.set(self)

    def newest_stash(self, number: int) -> bool:
        return number == self._stashes

    def restash(self) -> Awaitable[object]:
        """Write the newest stash again, with the step counters of its own time."""
        assert self._stash is not None
        assert self._stash_steps is not None
        return self._live.insist(Stash(self.id, self._stash, self._stash_steps))

    def _stash_writes(self, data: Any) -> tuple[Write, ...]:
        self.check_open()
        encoded = encode(data, "a stash")
        steps = encode(self.scopes.counters(), "the step counters of a fiber")
        progress = self.progress() if encoded != self._stash else ()
        self._stash, self._stash_steps = encoded, steps
        self._stashes += 1
        return (Stash(self.id, encoded, steps), *progress)

    def check_open(self) -> None:
        """Raise if the fiber may not begin anything new."""
        if self.stopping:
            raise asyncio.CancelledError
        if self.closed:
            raise FiberClosed(f"({self.label})")


class _Stashed:
    """Awaiting it means the stash is on disk, or a newer one is."""

    __slots__ = ("_fiber", "_number", "_queued")

    def __init__(self, fiber: Fiber, queued: asyncio.Future[int], number: int) -> None:
        self._fiber = fiber
        self._queued = queued
        self._number = number

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        try:
            await asyncio.shield(self._queued)
        except StoreUnavailable:
            if self._fiber.newest_stash(self._number):
                await self._fiber.restash()


class Running(Generic[T_co]):
    """A started fiber. Await it for its result, or leave it running."""

    __slots__ = ("_live", "_opened", "_shape")

    def __init__(self, live: Live, opened: asyncio.Future[tuple[str, bool]], shape: type[Any] | None) -> None:
        self._live = live
        self._opened = opened
        self._shape = shape

    @property
    def id(self) -> str:
        """The fiber's id. Known once it has started."""
        return self._opened.result()[0]

    async def started(self) -> str:
        """The fiber's id, once its row is on disk: from here on it survives (P1)."""
        return (await asyncio.shield(self._opened))[0]

    async def accepted(self) -> bool:
        """False if a fiber with the same key was there already: this one joined it."""
        return (await asyncio.shield(self._opened))[1]

    def __await__(self) -> Generator[Any, None, T_co]:
        return self._result().__await__()

    async def _result(self) -> Any:
        async with self._live.turnstile.released():
            fiber = await self.started()
            return await self._live.host.result(fiber, self._shape)


def _retrieve(queued: asyncio.Future[int]) -> None:
    """A stash that nobody awaits must not fail unseen."""
    if not queued.cancelled() and isinstance(error := queued.exception(), Exception):
        log.warning("a stash was not written: %s", error)


async def _all_ended(tasks: list[asyncio.Task[T]]) -> list[T]:
    try:
        if tasks:
            await asyncio.wait(tasks)
        return [one.result() for one in tasks]
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
