"""State, log and lists; values; what is forgotten; time."""

from __future__ import annotations

from ...core.writes import AddChunk, Append, PutState, SettleOp
from ..desk import Desk, check, same


@check
async def the_state_is_replaced_whole_with_its_version(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    same(await desk.store.state(lease.session), None)
    await desk.store.commit(lease, PutState(b"1", 1))
    await desk.store.commit(lease, PutState(b"2", 2))
    same(await desk.store.state(lease.session), (b"2", 2))
    same(await desk.store.state(other.session), None)


@check
async def the_log_is_read_in_pages(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    await desk.store.commit(other, desk.event("other"))
    for n in range(7):
        await desk.store.commit(lease, Append(f"{n}", f"body {n}".encode(), desk.now + n))
    first = await desk.store.events(lease.session, limit=3)
    same(
        [(row.session, row.seq, row.type, row.body, row.at) for row in first],
        [(lease.session, n + 1, f"{n}", f"body {n}".encode(), desk.now + n) for n in range(3)],
    )
    same([row.seq for row in await desk.store.events(lease.session, after=3, limit=3)], [4, 5, 6])
    same([row.seq for row in await desk.store.events(lease.session, after=6)], [7])
    same(await desk.store.events(lease.session, after=7), [])


@check
async def sessions_are_listed_in_pages(desk: Desk) -> None:
    leases = [await desk.lease("a", f"k{n}") for n in range(7)]
    seen: list[str] = []
    while page := await desk.store.sessions(after=seen[-1] if seen else "", limit=3):
        same(len(page) <= 3, True)
        seen += [row.id for row in page]
    same(seen, sorted(lease.session for lease in leases))


@check
async def values_come_back_as_they_were_written(desk: Desk) -> None:
    lease = await desk.lease("a", "ключ 🔑 'quoted' \"%s\" \\ \u202e \u0301")
    every_byte = bytes(range(256))
    large = every_byte * 4096
    await desk.store.commit(lease, PutState(large, 1), Append("týpe", large, desk.now), Append("", b"", 0))
    same(await desk.store.state(lease.session), (large, 1))
    rows = await desk.store.events(lease.session)
    same([(row.type, row.body) for row in rows], [("týpe", large), ("", b"")])
    for row in rows:
        same(type(row.body), bytes)
    fiber = await desk.open_fiber(lease, name="名前", args=b"", stash=None, key="🔑")
    same(await desk.store.fiber_by_key(lease.session, "🔑"), fiber, "empty bytes are not None")
    op = await desk.open_op(lease, fiber, args=large, handle=b"")
    same(await desk.the_op(op), op)
    found = await desk.store.session(lease.session)
    same(found and found.key, "ключ 🔑 'quoted' \"%s\" \\ \u202e \u0301")
    numbers = await desk.open_fiber(lease, "big", started_at=2**62, attempted_at=0)
    same(await desk.store.fiber("big"), numbers)


@check
async def ended_fibers_are_forgotten_after_their_retention(desk: Desk) -> None:
    lease = await desk.lease()
    for n in range(5):
        row = await desk.open_fiber(lease, f"f{n}")
        op = await desk.open_op(lease, row)
        await desk.store.commit(lease, AddChunk(op, 1, b"x"), SettleOp(op, "done", b"1", desk.now))
        await desk.close_fiber(lease, row, expires_at=desk.now + 1_000 * (n + 1))
    same(await desk.store.prune(), 0)
    await desk.clock.advance(3)
    same(await desk.store.prune(limit=2), 2)
    same(await desk.store.prune(limit=2), 1)
    same(await desk.store.prune(limit=2), 0)
    same(sorted(row.id for row in await desk.store.ended(lease.session)), ["f3", "f4"])
    same(await desk.store.ops_from("f0", "", 0, 10), [])
    same(await desk.store.chunks(desk.op(desk.fiber(lease, "f0"), chunks=1)), [])
    same(len(await desk.store.ops_from("f4", "", 0, 10)), 1)


@check
async def a_doubt_is_kept_until_someone_settles_it(desk: Desk) -> None:
    lease = await desk.lease()
    row = await desk.open_fiber(lease)
    op = await desk.open_op(lease, row)
    await desk.close_fiber(lease, row, expires_at=desk.now)
    same(await desk.store.prune(), 1)
    same(await desk.store.open_ops(lease.session), [op._replace(outcome="doubt")])
    await desk.store.commit(lease, SettleOp(op, "done", b"1", desk.now))
    same(await desk.store.open_ops(lease.session), [])


@check
async def a_fiber_is_found_though_its_host_was_dead_for_long(desk: Desk) -> None:
    """A silent host may come back after everybody forgot it, open a fiber, and die."""
    lease = await desk.lease("a")
    await desk.clock.advance(3600)
    await desk.host("b")
    await desk.store.prune()
    await desk.open_fiber(lease)
    same(await desk.due("b"), ["k"])


@check
async def the_store_goes_by_the_clock_it_was_given(desk: Desk) -> None:
    same(desk.store.now(), desk.clock.now())
    await desk.clock.advance(12.345)
    same(desk.store.now(), desk.clock.now())
    same((await desk.take()).session.created_at, desk.clock.now())
