"""How a fiber begins, is entered again, waits for an answer and ends. Each is one commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..core.errors import Diverged, Fenced, NotFound, StoreUnavailable, Uncertain
from ..core.facts import EndedRow, FiberKind, FiberOutcome, FiberRow
from ..core.writes import Append, CloseFiber, EnterFiber, OpenFiber, ParkFiber, SettleOp, Write
from .fibers import Fiber, Running
from .live import Live
from .turnstile import leave_all_turns
from .values import encode, in_words

log = logging.getLogger("perdure")

Body = Callable[[Fiber], Awaitable[Any]]
Opened = asyncio.Future[tuple[str, bool]]
"""The fiber's id, and whether it is a new one."""


def start(
    live: Live,
    name: str,
    body: Body,
    *,
    kind: FiberKind = "function",
    version: int = 1,
    args: bytes | None = None,
    key: str | None = None,
    shape: type[Any] | None = None,
    with_it: tuple[Write, ...] = (),
    insist: bool = False,
) -> Running[Any]:
    """Start a fiber. Its row is on disk before its body runs; `with_it` is in that commit.

    If the store is away, the start fails and never happened; or with `insist` it waits.
    """
    if live.lost:
        raise Fenced
    now = live.host.store.now()
    row = FiberRow(
        id=live.host.new_id("f"),
        session=live.id,
        name=name,
        kind=kind,
        version=version,
        args=args,
        key=key,
        host=live.lease.host,
        epoch=live.lease.epoch,
        steps=None,
        stash=None,
        attempt=0,
        stalled=0,
        attempted_at=now,
        started_at=now,
        parked=None,
    )
    opened = _opening(live)
    live.spawn(_launch(live, row, body, opened, with_it, insist))
    return Running(live, opened, shape)


def take_over(live: Live, row: FiberRow, name: str, body: Body, shape: type[Any] | None) -> Running[Any]:
    """Go on with a cut fiber's row under a new body; its first commit says so."""
    opened = _opening(live)
    fiber = _adopt(live, Fiber(live, row._replace(name=name), entered_again=True))
    live.spawn(_launch_again(live, fiber, body, opened))
    return Running(live, opened, shape)


def enter(live: Live, row: FiberRow, body: Body) -> None:
    """Run a fiber again whose attempt is committed."""
    live.spawn(_run(live, _adopt(live, Fiber(live, row, entered_again=True)), body))


async def park(live: Live, row: FiberRow, question: dict[str, Any], *, doubted: bool = False) -> None:
    """The fiber waits for an answer; this uses no attempts. If it asks about an op that was in doubt,
    and the answer came first, it goes on."""
    async with live.answering:
        if doubted and not await _in_doubt(live, question["op"]):
            await _go_on(live, row.id)
            return
        event = encode({"fiber": row.id, "name": row.name, **question}, "an event")
        waiting = ParkFiber(row.id, encode(question, "a question"))
        await live.insist(waiting, Append("fiber.interrupted", event, live.host.store.now()))
    log.warning("fiber %s (%s) waits for an answer: %s", row.name, row.id, question["message"])
    live.host.parked(row.id, question)


async def close(
    live: Live, row: FiberRow, ended: EndedRow, *more: Write, cause: Exception | None = None
) -> None:
    """End a fiber from outside its body: the row leaves first, then its task, and it is not entered again."""
    fiber = live.fibers.get(row.id)
    never_called = [] if fiber is None else fiber.never_called
    cancelled = [SettleOp(one, "cancelled", None, ended.ended_at) for one in never_called]
    if fiber is not None:
        fiber.closed = True
    await live.insist(*cancelled, CloseFiber(ended), *more)
    live.host.finished(ended, cause)
    entering = live.pending.get(row.id)
    if entering is not None and entering is not asyncio.current_task():
        entering.cancel()
    for one in (fiber, live.fibers.get(row.id)):
        if one is not None:
            one.closed = True
            if one.task is not None:
                one.task.cancel()


async def cancel(live: Live, fiber: str, *more: Write) -> bool:
    """Cancelled stays cancelled. False if the fiber had ended already."""
    row = await live.host.store.fiber(fiber)
    if row is None or row.session != live.id:
        if await live.host.store.ended_fiber(fiber) is None:
            raise NotFound(f"(fiber {fiber})")
        return False
    await close(live, row, ended(live, row, "cancelled"), *more)
    became = await live.patiently(live.host.store.ended_fiber, fiber)
    return became is None or became.outcome == "cancelled"


def ended(
    live: Live,
    row: FiberRow,
    outcome: FiberOutcome,
    value: bytes | None = None,
    *,
    error: str | None = None,
) -> EndedRow:
    now = live.host.store.now()
    settings = live.host.settings
    keep = settings.keep_failures if outcome == "failed" else settings.keep_results
    return EndedRow(
        id=row.id,
        session=live.id,
        name=row.name,
        key=row.key,
        outcome=outcome,
        value=value,
        error=error,
        started_at=row.started_at,
        ended_at=now,
        expires_at=now + int(keep * 1000),
    )


# --- how it runs


async def _launch(
    live: Live, row: FiberRow, body: Body, opened: Opened, with_it: tuple[Write, ...], insist: bool
) -> None:
    try:
        joined = await _find(live, row.key, opened) if row.key is not None else None
        if joined is not None:
            opened.set_result((joined, False))
            return
        fiber = await _open(live, row, with_it, insist)
    except BaseException as error:
        _not_opened(opened, error)
        return
    finally:
        if row.key is not None and live.starting.get(row.key) is opened:
            del live.starting[row.key]
    opened.set_result((row.id, True))
    await _run(live, fiber, body)


async def _open(live: Live, row: FiberRow, with_it: tuple[Write, ...], insist: bool) -> Fiber:
    fiber = _adopt(live, Fiber(live, row, entered_again=False))
    try:
        await (live.insist if insist else live.commit)(OpenFiber(row), *with_it)
    except BaseException as error:
        _drop(live, fiber)
        if isinstance(error, StoreUnavailable):
            live.spawn(_withdraw(live, row))
        raise
    return fiber


async def _withdraw(live: Live, row: FiberRow) -> None:
    """The start was reported as failed: should its commit have landed, its row must go."""
    await live.insist(CloseFiber(ended(live, row, "cancelled")._replace(key=None)))


async def _find(live: Live, key: str, opened: Opened) -> str | None:
    """The fiber that has this key already: being started, open, or ended."""
    if (starting := live.starting.get(key)) is not None:
        return (await asyncio.shield(starting))[0]
    live.starting[key] = opened
    store = live.host.store
    found = await store.fiber_by_key(live.id, key) or await store.ended_by_key(live.id, key)
    return found.id if found is not None else None


async def _launch_again(live: Live, fiber: Fiber, body: Body, opened: Opened) -> None:
    try:
        await live.insist(EnterFiber(fiber.row))
    except BaseException as error:
        _drop(live, fiber)
        _not_opened(opened, error)
        return
    opened.set_result((fiber.id, True))
    await _run(live, fiber, body)


async def _run(live: Live, fiber: Fiber, body: Body) -> None:
    """The fiber's body, and the commit that ends it."""
    if fiber.closed:
        _drop(live, fiber)
        return
    fiber.task = asyncio.current_task()
    fiber.enter()
    leave_all_turns()
    try:
        became, cause = await _outcome(live, fiber, body)
        if became is not None and not fiber.closed:
            await live.insist(CloseFiber(became, fiber.wrote_ops))
            live.host.finished(became, cause)
    except (Uncertain, Diverged) as question:
        await park(live, fiber.row, _question(question), doubted=question.op_id in fiber.doubted)
    except Fenced:
        return
    finally:
        _drop(live, fiber)


async def _outcome(live: Live, fiber: Fiber, body: Body) -> tuple[EndedRow | None, BaseException | None]:
    """What became of the body. None if it was only interrupted here and goes on elsewhere."""
    try:
        value = encode(await body(fiber), f"the result of fiber {fiber.name}")
        return ended(live, fiber.row, "done", value), None
    except asyncio.CancelledError:
        if fiber.stopping or live.lost:
            return None, None
        return ended(live, fiber.row, "cancelled"), None
    except (Uncertain, Diverged):
        raise
    except (Fenced, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        failed = ended(live, fiber.row, "failed", error=in_words(error))
        log.warning("fiber %s failed: %s", fiber.label, failed.error, exc_info=error)
        return failed, error


def _question(question: Uncertain | Diverged) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "why": type(question).__name__,
        "op": question.op_id,
        "message": str(question),
    }
    if isinstance(question, Diverged):
        asked["scope"], asked["step"] = question.place
    return asked


async def _in_doubt(live: Live, op: str) -> bool:
    found = await live.patiently(live.host.store.open_op, op)
    return found is not None and found.outcome == "doubt"


async def _go_on(live: Live, fiber: str) -> None:
    row = await live.patiently(live.host.store.fiber, fiber)
    if row is not None:
        live.host.recover(live, row._replace(host=None))


def _opening(live: Live) -> Opened:
    opened: Opened = asyncio.get_running_loop().create_future()
    live.launching += 1

    def launched(done: Opened) -> None:
        live.launching -= 1
        if not done.cancelled():
            done.exception()

    opened.add_done_callback(launched)
    return opened


def _not_opened(opened: Opened, error: BaseException) -> None:
    """Tell the starter; then unwind if that is what the error asks for."""
    known = isinstance(error, Exception | Fenced)
    if not opened.done():
        opened.set_exception(error if known else asyncio.CancelledError())
    if not known:
        raise error


def _adopt(live: Live, fiber: Fiber) -> Fiber:
    live.fibers[fiber.id] = fiber
    live.host.expect(fiber.id)
    return fiber


def _drop(live: Live, fiber: Fiber) -> None:
    fiber.closed = True
    fiber.proved.set()
    if live.fibers.get(fiber.id) is fiber:
        del live.fibers[fiber.id]
    live.touch()
