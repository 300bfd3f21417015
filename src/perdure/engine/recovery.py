"""Taking up fibers that were cut: by re-entering their method, or through the agent's hook."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import BadInput, Exhausted, Fenced, PerdureError, Unrecovered
from ..core.facts import EndedRow, FiberRow
from ..core.recovery import Enter, GiveUp, plan
from ..core.writes import Append, EnterFiber
from . import lifecycle
from .fibers import leave_fiber
from .lifecycle import Body
from .live import Live
from .turnstile import leave_all_turns
from .values import decode, encode, writable

if TYPE_CHECKING:
    from .agent import Agent

log = logging.getLogger("perdure")

_TAKING_OVER: ContextVar[TakeOver] = ContextVar("perdure_take_over")


@dataclass(frozen=True, slots=True)
class FiberRecovery:
    """A cut fiber, as `on_fiber_recovered` sees it."""

    id: str
    name: str
    stash: Any
    attempt: int
    age: float
    """Seconds since the fiber was started."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The hook's answer: the fiber is done, with this result."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The hook's answer: the fiber has failed, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continue:
    """The hook's answer: the fiber goes on with this function, and its stash."""

    body: Body


class TakeOver:
    """The first fiber that a hook starts takes over the cut one's row: never none, never two."""

    __slots__ = ("done", "row")

    def __init__(self, row: FiberRow) -> None:
        self.row = row
        self.done = False


def to_take_over() -> TakeOver | None:
    """The cut fiber whose hook is running and has not started anything yet."""
    taking = _TAKING_OVER.get(None)
    return None if taking is None or taking.done else taking


class Recovery:
    """The cut fibers of one host. Those that may kill their process enter one at a time."""

    def __init__(self) -> None:
        self._alone = asyncio.Lock()

    def recover(self, live: Live, row: FiberRow, suspect: str | None = None) -> None:
        """Take up a cut fiber when its time has come. The caller does not wait for it."""
        host = live.host
        decided = plan(
            row, here=host.id, suspect=suspect, now=host.store.now(), patience=host.settings.patience
        )
        log.info(
            "session %s: fiber %s (%s) was cut, attempt %d",
            live.label,
            row.name,
            row.id,
            decided.fiber.attempt,
        )
        host.expect(row.id)
        live.pending[row.id] = live.spawn(self._carry_out(live, decided))

    async def _carry_out(self, live: Live, decided: Enter | GiveUp) -> None:
        row = decided.fiber
        leave_fiber()
        leave_all_turns()
        try:
            if isinstance(decided, GiveUp):
                await self._give_up(live, row, Exhausted(f"({decided.why})"))
                return
            if wait := max(0, decided.at - live.host.store.now()):
                await live.host.clock.sleep(wait / 1000)
            if decided.alone:
                await self._enter_alone(live, row)
            else:
                await self._enter(live, row)
        except Fenced:
            return
        finally:
            if live.pending.get(row.id) is asyncio.current_task():
                del live.pending[row.id]

    async def _enter_alone(self, live: Live, row: FiberRow) -> None:
        """If the process dies now, this fiber is blamed and no other."""
        host = live.host
        async with self._alone:
            await live.patiently(host.store.suspect, host.id, row.id)
            try:
                await self._enter(live, row)
                fiber = live.fibers.get(row.id)
                if fiber is not None:
                    await _first_of(fiber.proved.wait(), host.clock.sleep(host.settings.tryout))
            finally:
                await asyncio.shield(host.store.suspect(host.id, None))

    async def _enter(self, live: Live, cut: FiberRow) -> None:
        row = cut._replace(
            host=live.lease.host,
            epoch=live.lease.epoch,
            attempted_at=live.host.store.now(),
            parked=None,
        )
        match row.kind:
            case "function":
                await live.insist(EnterFiber(row))
                await self._ask_hook(live, row)
            case "method":
                await self._enter_method(live, row)
            case "alarm":
                await live.insist(EnterFiber(row))
                fired = decode(row.args)
                body = live.host.alarm_body(live, fired["method"], encode(fired["args"], "an alarm"))
                lifecycle.enter(live, row, body)

    async def _enter_method(self, live: Live, row: FiberRow) -> None:
        try:
            upgraded, body = live.agent.__class__.fiber_again(live.agent, row)
        except PerdureError as unknown:
            await lifecycle.park(live, row, {"why": type(unknown).__name__, "message": str(unknown)})
            return
        await live.insist(EnterFiber(upgraded))
        lifecycle.enter(live, upgraded, body)

    async def _ask_hook(self, live: Live, row: FiberRow) -> None:
        if not _has_hook(live.agent):
            log.warning("fiber %s (%s): %s", row.name, row.id, Unrecovered.__doc__)
            await self._give_up(live, row, Unrecovered(f"({row.name})"))
            return
        cut = FiberRecovery(
            id=row.id,
            name=row.name,
            stash=decode(row.stash),
            attempt=row.attempt,
            age=(live.host.store.now() - row.started_at) / 1000,
        )
        taking = TakeOver(row)
        token = _TAKING_OVER.set(taking)
        try:
            async with live.turnstile.turn():
                answer = await live.agent.on_fiber_recovered(cut)
            ending = None if taking.done else _ending(live, row, answer)
        except Exception as error:
            log.warning("the hook of fiber %s (%s) failed", row.name, row.id, exc_info=error)
            if not taking.done:
                self.recover(live, row._replace(host="its hook failed"))
            return
        finally:
            _TAKING_OVER.reset(token)
        if taking.done:
            return
        taking.done = True
        if isinstance(answer, Continue):
            lifecycle.enter(live, row, answer.body)
        elif ending is not None:
            await lifecycle.close(live, row, ending)

    async def _give_up(self, live: Live, row: FiberRow, why: PerdureError) -> None:
        error = f"{type(why).__name__}: {why}"
        said = encode({"fiber": row.id, "name": row.name, "error": error}, "an event")
        event = Append("fiber.failed", said, live.host.store.now())
        log.warning("fiber %s (%s) is given up: %s", row.name, row.id, why)
        await lifecycle.close(live, row, lifecycle.ended(live, row, "failed", error=error), event, cause=why)


def _ending(live: Live, row: FiberRow, answer: object) -> EndedRow | None:
    """What the hook's answer makes of the fiber; None if it goes on. Raises for anything else."""
    match answer:
        case Continue():
            return None
        case Fail(str(reason)):
            return lifecycle.ended(live, row, "failed", error=writable(reason))
        case Finish(value):
            return lifecycle.ended(live, row, "done", encode(value, "the result of a fiber"))
        case None:
            return lifecycle.ended(live, row, "done", b"null")
        case _:
            raise BadInput(f"(a hook returns Finish, Fail, Continue or None, not {answer!r:.200})")


def _has_hook(agent: Agent) -> bool:
    return type(agent).on_fiber_recovered is not _default_hook()


def _default_hook() -> Any:
    from .agent import Agent

    return Agent.on_fiber_recovered


async def _first_of(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in tasks:
            one.cancel()
