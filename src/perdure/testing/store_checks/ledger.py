"""Fibers and their ops."""

from __future__ import annotations

from ...core.errors import Conflict
from ...core.writes import (
    AddChunk,
    EnterFiber,
    ForgetOp,
    HoldHandle,
    OpenFiber,
    OpenOp,
    ParkFiber,
    Progress,
    RecordOp,
    SettleOp,
    Stash,
    UnparkFiber,
)
from ..desk import Desk, check, raises, same


@check
async def a_fiber_row_holds_what_was_written(desk: Desk) -> None:
    lease = await desk.lease()
    row = desk.fiber(
        lease, "f", name="næme", kind="method", version=3, args=b"\x00\xff", key="k1", steps=b"{}", stash=b"s"
    )
    await desk.store.commit(lease, OpenFiber(row))
    same(await desk.store.fiber("f"), row)
    same(await desk.store.fibers(lease.session), [row])
    same(await desk.store.fiber_by_key(lease.session, "k1"), row)
    same(await desk.store.fiber_by_key(lease.session, "other"), None)
    same(await desk.store.fiber("other"), None)


@check
async def entering_a_fiber_says_who_works_on_it_and_how_often_it_was_tried(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease, key="k1", steps=b"7")
    await desk.clock.advance(1)
    work = {"name": "new", "kind": "method", "version": 2, "args": b"new", "stash": b"new"}
    life = {"host": "b", "epoch": 9, "attempt": 3, "stalled": 2, "attempted_at": desk.now}
    entered = row._replace(**work, **life)
    await desk.store.commit(lease, EnterFiber(entered))
    same(await desk.store.fiber(row.id), entered)


@check
async def a_stash_replaces_the_checkpoint_and_its_steps(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease, stalled=2)
    await desk.store.commit(lease, Stash(row.id, b"one", b"1"))
    await desk.store.commit(lease, Stash(row.id, b"two", b"2"), Progress(row.id))
    same(await desk.store.fiber(row.id), row._replace(stash=b"two", steps=b"2", stalled=0))


@check
async def a_parked_fiber_belongs_to_nobody_until_it_is_entered_again(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease)
    await desk.store.commit(lease, ParkFiber(row.id, b'"why"'))
    same(await desk.store.fiber(row.id), row._replace(parked=b'"why"', host=None))
    await desk.store.commit(lease, UnparkFiber(row.id))
    same(await desk.store.fiber(row.id), row._replace(host=None))
    await desk.store.commit(lease, EnterFiber(row))
    same(await desk.store.fiber(row.id), row)


@check
async def a_closed_fiber_leaves_its_outcome(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease, key="k1")
    ended = await desk.close_fiber(lease, row, outcome="failed", value=None, error="Boom: ö")
    same(await desk.store.fibers(lease.session), [])
    same(await desk.store.fiber_by_key(lease.session, "k1"), None)
    same(await desk.store.ended_fiber(row.id), ended)
    same(await desk.store.ended_by_key(lease.session, "k1"), ended)
    same(await desk.store.ended_fiber("other"), None)


@check
async def the_first_outcome_of_a_fiber_stands(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease)
    first = await desk.close_fiber(lease, row, outcome="cancelled")
    await desk.close_fiber(lease, row, outcome="done")
    same(await desk.store.ended_fiber(row.id), first)


@check
async def ended_fibers_are_listed_newest_first(desk: Desk) -> None:
    lease = await desk.lease()
    for n in range(5):
        await desk.close_fiber(lease, await desk.open_fiber(lease, f"f{n}", key="same"))
        await desk.clock.advance(1)
    same([row.id for row in await desk.store.ended(lease.session, limit=3)], ["f4", "f3", "f2"])
    newest = await desk.store.ended_by_key(lease.session, "same")
    same(newest and newest.id, "f4")


@check
async def a_key_names_one_open_fiber_of_a_session(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    await desk.open_fiber(lease, "f1", key="k1")
    await raises(Conflict, desk.store.commit(lease, OpenFiber(desk.fiber(lease, "f2", key="k1"))))
    await desk.open_fiber(other, "f3", key="k1")
    await desk.close_fiber(lease, desk.fiber(lease, "f1", key="k1"))
    await desk.open_fiber(lease, "f4", key="k1")


@check
async def no_op_outlives_its_fiber_unsettled(desk: Desk) -> None:
    lease = await desk.lease()
    row, other = await desk.open_fiber(lease), await desk.open_fiber(lease, "other")
    read = await desk.open_op(lease, row, 0, effect="read")
    once = await desk.open_op(lease, row, 1, effect="once")
    keyed = await desk.open_op(lease, row, 2, effect="keyed", key_until=desk.now + 1)
    settled = await desk.open_op(lease, row, 3)
    doubted = await desk.open_op(lease, row, 4)
    elsewhere = await desk.open_op(lease, other, 0)
    done = SettleOp(settled, "done", b"1", desk.now)
    await desk.store.commit(lease, done, SettleOp(doubted, "doubt", None, None))
    await desk.clock.advance(1)
    await desk.close_fiber(lease, row, outcome="cancelled")
    same(await desk.the_op(read), read._replace(outcome="cancelled", settled_at=desk.now))
    for op in (once, keyed, doubted):
        same(await desk.the_op(op), op._replace(outcome="doubt"))
    same(
        await desk.the_op(settled), settled._replace(outcome="done", result=b"1", settled_at=desk.now - 1000)
    )
    same(await desk.the_op(elsewhere), elsewhere)


@check
async def an_op_row_holds_what_was_written(desk: Desk) -> None:
    lease = await desk.lease()
    fiber = await desk.open_fiber(lease)
    op = desk.op(
        fiber,
        7,
        "/3:søn",
        kind="kind",
        effect="keyed",
        args=b"\x00",
        handle=b"h",
        cursor=b"c",
        key_until=desk.now,
    )
    await desk.store.commit(lease, OpenOp(op))
    same(await desk.the_op(op), op)
    same(await desk.store.open_op(op.id), op)
    same(await desk.store.open_ops(lease.session), [op])
    same(await desk.store.open_op("other"), None)


@check
async def an_op_replaces_what_stood_at_its_place(desk: Desk) -> None:
    lease = await desk.lease()
    fiber = await desk.open_fiber(lease)
    old = await desk.open_op(lease, fiber, kind="old", effect="read", handle=b"h", cursor=b"c")
    await desk.store.commit(lease, AddChunk(old, 1, b"one"), AddChunk(old, 2, b"two"))
    new = desk.op(fiber, kind="new", effect="read", outcome="done", result=b"2", settled_at=desk.now)
    await desk.store.commit(lease, RecordOp(new))
    same(await desk.the_op(new), new)
    same(await desk.store.chunks(new), [], "the chunks of the op that was replaced")
    newer = await desk.open_op(lease, fiber, kind="newer", effect="read")
    await desk.store.commit(lease, AddChunk(newer, 1, b"mine"))
    found = await desk.the_op(newer)
    same(found, newer._replace(chunks=1))
    same(await desk.store.chunks(found or newer), [b"mine"])


@check
async def a_settled_op_stays_as_it_was_settled(desk: Desk) -> None:
    lease = await desk.lease()
    op = await desk.open_op(lease, await desk.open_fiber(lease))
    await desk.store.commit(lease, SettleOp(op, "done", b"first", desk.now))
    await desk.store.commit(lease, SettleOp(op, "failed", b"second", desk.now + 1))
    same(await desk.the_op(op), op._replace(outcome="done", result=b"first", settled_at=desk.now))
    same(await desk.store.open_op(op.id), None)
    same(await desk.store.open_ops(lease.session), [])


@check
async def a_doubt_is_listed_until_someone_settles_it(desk: Desk) -> None:
    lease = await desk.lease()
    op = await desk.open_op(lease, await desk.open_fiber(lease))
    await desk.store.commit(lease, SettleOp(op, "doubt", None, None))
    doubt = op._replace(outcome="doubt")
    same(await desk.store.open_ops(lease.session), [doubt])
    same(await desk.store.open_op(op.id), doubt)
    await desk.store.commit(lease, SettleOp(doubt, "done", b"1", desk.now))
    same(await desk.store.open_ops(lease.session), [])
    same(await desk.the_op(op), op._replace(outcome="done", result=b"1", settled_at=desk.now))


@check
async def a_forgotten_op_frees_its_place(desk: Desk) -> None:
    lease = await desk.lease()
    fiber = await desk.open_fiber(lease)
    op, other = await desk.open_op(lease, fiber, 0), await desk.open_op(lease, fiber, 1)
    await desk.store.commit(lease, AddChunk(op, 1, b"x"))
    await desk.store.commit(lease, ForgetOp(op))
    same(await desk.the_op(op), None)
    same(await desk.store.chunks(op._replace(chunks=1)), [])
    same(await desk.the_op(other), other)


@check
async def chunks_are_kept_in_their_order(desk: Desk) -> None:
    lease = await desk.lease()
    op = await desk.open_op(lease, await desk.open_fiber(lease))
    pieces = [f"piece {n}".encode() for n in range(1, 13)]
    for n, piece in enumerate(pieces, start=1):
        await desk.store.commit(lease, AddChunk(op, n, piece))
    found = await desk.the_op(op)
    same(found, op._replace(chunks=12))
    same(await desk.store.chunks(found or op), pieces)


@check
async def a_handle_and_its_cursor_move(desk: Desk) -> None:
    lease = await desk.lease()
    op = await desk.open_op(lease, await desk.open_fiber(lease))
    await desk.store.commit(lease, HoldHandle(op, b"run-1", None))
    same(await desk.the_op(op), op._replace(handle=b"run-1"))
    await desk.store.commit(lease, HoldHandle(op, b"run-1", b"17"))
    same(await desk.the_op(op), op._replace(handle=b"run-1", cursor=b"17"))


@check
async def the_ops_of_a_scope_are_read_from_a_step_on(desk: Desk) -> None:
    lease = await desk.lease()
    fiber = await desk.open_fiber(lease)
    for step in (3, 1, 2, 12, 0):
        await desk.open_op(lease, fiber, step)
    await desk.open_op(lease, fiber, 1, scope="/other")
    same([op.step for op in await desk.store.ops_from(fiber.id, "", 1, 10)], [1, 2, 3, 12])
    same([op.step for op in await desk.store.ops_from(fiber.id, "", 1, 2)], [1, 2])
    same([op.step for op in await desk.store.ops_from(fiber.id, "/other", 0, 10)], [1])
    same(await desk.store.ops_from("other", "", 0, 10), [])


@check
async def the_ops_of_a_session_are_listed_newest_first(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    old, new = await desk.open_fiber(lease, "old"), await desk.open_fiber(lease, "new")
    await desk.open_op(other, await desk.open_fiber(other, "other"), kind="other")
    for n, fiber in enumerate((old, new, old, new)):
        await desk.open_op(lease, fiber, n, kind=f"{n}")
        await desk.clock.advance(1)
    await desk.close_fiber(lease, old)
    same([op.kind for op in await desk.store.ops(lease.session)], ["3", "2", "1", "0"])
    same([op.kind for op in await desk.store.ops(lease.session, limit=2)], ["3", "2"])
    same([op.kind for op in await desk.store.open_ops(lease.session)], ["0", "1", "2", "3"])
