"""Performing an op: decide by the ledger, act, and commit what became of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from ..core.errors import (
    BadInput,
    Diverged,
    InProgress,
    OpFailed,
    PerdureError,
    TooLarge,
    Uncertain,
    Unserialisable,
)
from ..core.facts import Effect, OpOutcome, OpRow
from ..core.identity import Place, keyed_place, op_id
from ..core.verdict import (
    Cut,
    Divergence,
    Doubt,
    Reattach,
    Replay,
    Run,
    Verdict,
    key_lives,
    other_asked,
    same,
    verdict,
)
from ..core.writes import AddChunk, Append, ForgetOp, HoldHandle, OpenOp, RecordOp, SettleOp, Write
from .values import decode, encode, in_words, revive, shape_of

if TYPE_CHECKING:
    from .fibers import Fiber

log = logging.getLogger("perdure")

OUTCOME_UNKNOWN: tuple[type[BaseException], ...] = (OSError, TimeoutError)
"""Errors after which a call may still have had its effect."""

SAME_KEY_AGAIN = (0.5, 2.0, 8.0)
"""Pauses (seconds) before a `keyed` call whose outcome is unknown is made again with its key."""

_CURRENT: ContextVar[Op] = ContextVar("perdure_op")


class Gone(PerdureError):
    """The remote run is proven gone; its handle leads nowhere."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What `verify` returns when the op did happen, with the result it had."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """What `verify` returns when the op certainly did not happen."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the code asks for: one call, and what running it twice would do."""

    kind: str
    call: Callable[..., Any]
    args: tuple[Any, ...]
    encoded: bytes
    effect: Effect
    key: str | None
    key_lives: float
    handle: Any
    verify: Callable[..., Awaitable[Happened | DidNotHappen | None]] | None
    reattach: Callable[[Any, Any], Awaitable[Any]] | None
    resume: Callable[[list[Any]], Awaitable[Any]] | None
    unknown: tuple[type[BaseException], ...]
    shape: type[Any] | None


class Op:
    """The op that is being performed, as its own call sees it (`current_op()`)."""

    __slots__ = ("_fiber", "called", "opened", "row", "verifiable")

    def __init__(self, fiber: Fiber, row: OpRow, *, opened: bool, verifiable: bool) -> None:
        self._fiber = fiber
        self.row = row
        self.opened = opened
        self.called = opened
        self.verifiable = verifiable

    @property
    def id(self) -> str:
        """Stable over crashes: the idempotency key to give to the other side."""
        return self.row.id

    async def hold(self, handle: Any, cursor: Any = None) -> None:
        """Once awaited, a crash finds `handle`, and the run it points to is followed, not repeated."""
        await self._point(encode(handle, "an op's handle"), encode(cursor, "an op's cursor"))

    async def move(self, cursor: Any) -> None:
        """Once awaited, a new owner reads the remote run from `cursor` on."""
        await self._point(self.row.handle, encode(cursor, "an op's cursor"))

    async def emit(self, chunk: Any) -> None:
        """Once awaited, this piece of the output survives, and may be shown (P2)."""
        data = encode(chunk, "a chunk")
        row = self.row._replace(chunks=self.row.chunks + 1)
        await self._write(AddChunk(self.row, row.chunks, data), row)

    @property
    def safe_to_cut(self) -> bool:
        """Whether a new owner will know what to do with it: begin, follow, repeat, or ask."""
        followed = self.row.handle is not None or self.verifiable
        return not self.called or self.row.effect != "once" or followed

    async def _point(self, handle: bytes | None, cursor: bytes | None) -> None:
        await self._write(
            HoldHandle(self.row, handle, cursor), self.row._replace(handle=handle, cursor=cursor)
        )

    async def _write(self, write: Write, row: OpRow) -> None:
        intent = () if self.opened else (OpenOp(self.row),)
        await self._fiber.commit(*intent, write)
        self.opened = True
        self.row = row


async def write_once(fiber: Fiber, kind: str, encoded: bytes, result: bytes, *writes: Write) -> bytes:
    """Writes of our own as a step of the fiber: one commit with its record, so made exactly once.
    Returns the result that was recorded."""
    scope = fiber.scopes.here()
    place = Place(fiber.id, scope.name, fiber.scopes.begin(scope))
    try:
        found = await fiber.recorded(place) if fiber.may_have_recorded(place) else None
        if found is not None and found.settled_at is not None and same(found, kind, encoded, "read"):
            return found.result or b"null"
        if found is not None and not isinstance(decided := other_asked(found), Run):
            raise Diverged(
                decided.op.id, _named(found.kind, found.args), _named(kind, encoded), (scope.name, place.step)
            )
        now = fiber.now()
        row = OpRow(
            id=op_id(place),
            session=fiber.session,
            fiber=fiber.id,
            scope=place.scope,
            step=place.step,
            kind=kind,
            effect="read",
            args=encoded,
            handle=None,
            cursor=None,
            opened_at=now,
            key_until=None,
            chunks=0,
            outcome="done",
            result=result,
            settled_at=now,
        )
        await fiber.commit(*writes, RecordOp(row), *fiber.progress())
        return result
    finally:
        fiber.scopes.finish(scope)


def within_op() -> bool:
    """Whether the call of an op is running here."""
    return _CURRENT.get(None) is not None


def current_op() -> Op:
    """The op whose call is running. Raises outside one."""
    try:
        return _CURRENT.get()
    except LookupError:
        raise BadInput("(there is no op here: call this from the function given to `op`)") from None


async def perform(fiber: Fiber, ask: Ask) -> Any:
    """The result of the op: of this call, of an earlier one, or the doubt about it."""
    partial: list[Any] = []
    if ask.key is not None:
        with fiber.scopes.key(ask.key):
            for step in count():
                value = await _perform_at(fiber, ask, keyed_place(fiber.id, ask.key, step), partial)
                if not isinstance(value, _Continue):
                    return value
                partial = value.partial
    while True:
        scope = fiber.scopes.here()
        step = fiber.scopes.begin(scope)
        try:
            value = await _perform_at(fiber, ask, Place(fiber.id, scope.name, step), partial)
        finally:
            fiber.scopes.finish(scope)
        if not isinstance(value, _Continue):
            return value
        partial = value.partial


@dataclass(frozen=True, slots=True)
class _Continue:
    """The answer was cut: the rest of it is the next step."""

    partial: list[Any]


async def _perform_at(fiber: Fiber, ask: Ask, place: Place, partial: list[Any] | None = None) -> Any:
    found = await fiber.recorded(place) if fiber.may_have_recorded(place) else None
    decided = _decide(found, ask, fiber.now())
    while True:
        if not isinstance(decided, Run):
            log.info("op %s of fiber %s: %s", ask.kind, fiber.label, _said(decided))
        match decided:
            case Run(op):
                return await _run(fiber, ask, place, op, found, partial or [])
            case Replay(op):
                return _replay(op, ask, partial or [])
            case Reattach(op):
                try:
                    return await _follow(fiber, ask, op)
                except Gone:
                    decided = verdict(op, reattachable=False, now=fiber.now())
            case Cut(op):
                return await _cut(fiber, op, partial or [])
            case Doubt(op):
                return await _doubt(fiber, ask, op)
            case Divergence(op):
                recorded, asked = _named(op.kind, op.args), _named(ask.kind, ask.encoded)
                raise Diverged(op.id, recorded, asked, (op.scope, op.step))


def _decide(found: OpRow | None, ask: Ask, now: int) -> Verdict:
    if found is not None and not same(found, ask.kind, ask.encoded, ask.effect):
        return other_asked(found)
    return verdict(found, reattachable=ask.reattach is not None, now=now)


async def _run(
    fiber: Fiber, ask: Ask, place: Place, again: OpRow | None, replaced: OpRow | None, partial: list[Any]
) -> Any:
    row = again or _row(fiber, ask, place)
    op = Op(fiber, row, opened=again is not None, verifiable=ask.verify is not None)
    if again is None and (ask.effect != "read" or row.handle is not None):
        await _intend(fiber, op, replaced)
    else:
        await fiber.may_act()
    call = ask.call
    args = ask.args
    if partial and ask.resume is not None:
        call, args = ask.resume, (partial,)
    return await _settle(fiber, ask, op, call, args)


async def _intend(fiber: Fiber, op: Op, replaced: OpRow | None) -> None:
    """Commit the intent (P5). From here until it is called, the op has provably not started."""
    fiber.check_open()
    fiber.in_flight.add(op)
    try:
        forget = (ForgetOp(replaced),) if replaced is not None and replaced.chunks else ()
        await fiber.commit(*forget, OpenOp(op.row))
        op.opened = True
        await fiber.may_act()
    except BaseException:
        fiber.in_flight.discard(op)
        raise


async def _follow(fiber: Fiber, ask: Ask, row: OpRow) -> Any:
    assert ask.reattach is not None
    op = Op(fiber, row, opened=True, verifiable=ask.verify is not None)
    await fiber.may_act()
    return await _settle(fiber, ask, op, ask.reattach, (decode(row.handle), decode(row.cursor)))


async def _settle(fiber: Fiber, ask: Ask, op: Op, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call, and commit what became of it. A settled op is never called again (P6)."""
    try:
        value = await _call(fiber, ask, op, call, args)
        data = encode(value, f"the result of {ask.kind}")
    except Gone:
        raise
    except (Unserialisable, TooLarge) as unstorable:
        if not op.opened:
            raise
        await _record(fiber, op, "failed", encode(f"it executed, but: {unstorable}", "an error"))
        raise
    except Exception as error:
        if ask.effect == "read":
            raise
        if isinstance(error, (Uncertain, *ask.unknown)):
            return await _doubt(fiber, ask, op.row, error)
        return await _fail(fiber, op, error)
    await _record(fiber, op, "done", data)
    shape = ask.shape or (shape_of(ask.call) if hasattr(value, "model_dump") else None)
    return revive(data, shape)


async def _call(fiber: Fiber, ask: Ask, op: Op, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Make the call; a `keyed` one again with the same key while its outcome is unknown."""
    pauses = iter(SAME_KEY_AGAIN if ask.effect == "keyed" else ())
    while True:
        try:
            return await _call_once(fiber, op, call, args)
        except InProgress as wait:
            if ask.effect != "keyed":
                raise
            pause = wait.retry_after
        except ask.unknown:
            if (pause := next(pauses, None)) is None:
                raise
        # A key that the other side may have forgotten by then protects from nothing.
        if not key_lives(op.row, fiber.now() + int(pause * 1000)):
            raise Uncertain(op.id, ask.kind)
        await fiber.sleep(pause)
        await fiber.may_act()


async def _call_once(fiber: Fiber, op: Op, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    token = _CURRENT.set(op)
    fiber.in_flight.add(op)
    op.called = True
    try:
        value = call(*args)
        return await value if inspect.isawaitable(value) else value
    finally:
        fiber.in_flight.discard(op)
        if op.opened:
            fiber.remember(op.row)
        _CURRENT.reset(token)


async def _fail(fiber: Fiber, op: Op, error: Exception) -> NoReturn:
    said = in_words(error)
    await _record(fiber, op, "failed", encode(said, "an error"))
    raise OpFailed(op.id, op.row.kind, said) from error


async def _record(fiber: Fiber, op: Op, outcome: OpOutcome, result: bytes) -> None:
    now = fiber.now()
    settled = op.row._replace(outcome=outcome, result=result, settled_at=now)
    if fiber.closed:
        await _settle_late(fiber, op, outcome, result, now)
    elif op.opened:
        await fiber.commit(SettleOp(op.row, outcome, result, now), *fiber.progress())
    else:
        await fiber.commit(RecordOp(settled), *fiber.progress())
    fiber.remember(settled)


async def _settle_late(fiber: Fiber, op: Op, outcome: OpOutcome, result: bytes, now: int) -> None:
    """The fiber has ended, and left this op in doubt: what is known now settles it."""
    if op.opened:
        said = encode({"op": op.id, "kind": op.row.kind, "outcome": outcome}, "an event")
        await fiber.commit_late(SettleOp(op.row, outcome, result, now), Append("op.settled", said, now))


async def _cut(fiber: Fiber, op: OpRow, before: list[Any]) -> _Continue:
    partial = before + [decode(one) for one in await fiber.patiently(fiber.ledger.chunks, op)]
    await fiber.commit(SettleOp(op, "cut", encode(partial, "a cut answer"), fiber.now()), *fiber.progress())
    return _Continue(partial)


def _replay(op: OpRow, ask: Ask, before: list[Any]) -> Any:
    match op.outcome:
        case "cut":
            return _Continue(decode(op.result) or before)
        case "failed":
            raise OpFailed(op.id, op.kind, decode(op.result))
        case "cancelled":
            raise OpFailed(op.id, op.kind, "it was cancelled")
        case _:
            return revive(op.result, ask.shape or shape_of(ask.call))


async def _doubt(fiber: Fiber, ask: Ask, op: OpRow, error: Exception | None = None) -> Any:
    """Ask `verify`; without an answer the doubt is recorded, and raised as a value (P7).

    What did not happen is run; or, if our own call has just ended with `error`, has failed.
    """
    if ask.verify is not None:
        answer = await _verified(fiber, ask)
        if isinstance(answer, Happened):
            data = encode(answer.result, f"the result of {ask.kind}")
            await _record(fiber, Op(fiber, op, opened=True, verifiable=True), "done", data)
            return revive(data, ask.shape or shape_of(ask.call))
        if isinstance(answer, DidNotHappen) and error is not None:
            return await _fail(fiber, Op(fiber, op, opened=True, verifiable=True), error)
        if isinstance(answer, DidNotHappen):
            return await _run(
                fiber, ask, Place(op.fiber, op.scope, op.step), op._replace(outcome=None), None, []
            )
    doubt = Uncertain(op.id, op.kind)
    if op.outcome != "doubt":
        body = encode({"op": op.id, "kind": op.kind, "fiber": op.fiber, "message": str(doubt)}, "an event")
        await fiber.commit(SettleOp(op, "doubt", None, None), Append("op.doubt", body, fiber.now()))
        fiber.remember(op._replace(outcome="doubt"))
        log.warning("fiber %s: %s", fiber.label, doubt)
    fiber.doubted.add(op.id)
    raise doubt


async def _verified(fiber: Fiber, ask: Ask) -> Happened | DidNotHappen | None:
    """What `verify` says; a `verify` that fails knows nothing."""
    assert ask.verify is not None
    try:
        return await ask.verify(*ask.args)
    except Exception as error:
        log.warning("op %s of fiber %s: `verify` failed", ask.kind, fiber.label, exc_info=error)
        return None


def _row(fiber: Fiber, ask: Ask, place: Place) -> OpRow:
    now = fiber.now()
    return OpRow(
        id=op_id(place),
        session=fiber.session,
        fiber=place.fiber,
        scope=place.scope,
        step=place.step,
        kind=ask.kind,
        effect=ask.effect,
        args=ask.encoded,
        handle=None if ask.handle is None else encode(ask.handle, "an op's handle"),
        cursor=None,
        opened_at=now,
        key_until=now + int(ask.key_lives * 1000) if ask.effect == "keyed" else None,
        chunks=0,
        outcome=None,
        result=None,
        settled_at=None,
    )


def _said(decided: Verdict) -> str:
    match decided:
        case Replay():
            return "it was settled before, its result is replayed"
        case Reattach():
            return "it still runs elsewhere and is followed"
        case Cut():
            return "it was cut in mid-answer and goes on as the next step"
        case Doubt():
            return "it was started and its outcome is not known"
        case Divergence():
            return "another irreversible op is recorded here"
        case Run():
            return "it is run"


def _named(kind: str, args: bytes) -> str:
    return f"{kind}{args[:200].decode(errors='replace')}"
