"""Commits: whole or not at all, under the newest lease, in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ...core.errors import Conflict, Fenced, StoreUnavailable
from ...core.writes import OpenFiber, PutAlarm, PutState
from ..desk import LIVES, Desk, check, raises, raises_now, same


@check
async def a_refused_write_leaves_nothing_of_its_commit(desk: Desk) -> None:
    lease = await desk.lease()
    await desk.open_fiber(lease, "f")
    before = await desk.store.session(lease.session)
    again = OpenFiber(desk.fiber(lease, "f"))
    writes = (desk.event(), PutState(b"1", 1), PutAlarm(desk.alarm(lease)), again)
    await raises(Conflict, desk.store.commit(lease, *writes))
    raises_now(Conflict, desk.store, lease, *writes)
    same(await desk.log(lease.session), [])
    same(await desk.store.state(lease.session), None)
    same(await desk.store.alarms(lease.session), [])
    same(await desk.store.session(lease.session), before, "the session's row")
    same(await desk.store.commit(lease, desk.event()), 1, "the lease still writes")


@check
async def a_commit_returns_the_last_seq_and_counts_the_revision(desk: Desk) -> None:
    lease = await desk.lease()
    same(await desk.store.commit(lease, desk.event(), desk.event()), 2)
    same(await desk.store.commit(lease, PutState(b"1", 1)), 2)
    same(desk.store.commit_now(lease, desk.event()), 3)
    row = await desk.store.session(lease.session)
    same(row and (row.revision, row.seq, row.epoch), (3, 3, 1))


@check
async def an_older_lease_is_fenced_and_writes_nothing(desk: Desk) -> None:
    old = await desk.lease("a")
    await desk.store.commit(old, desk.event("before"))
    await desk.clock.advance(LIVES / 1000)
    new = await desk.lease("b")
    await raises(Fenced, desk.store.commit(old, desk.event("late"), PutState(b"late", 1)))
    await raises(Fenced, desk.store.commit(old))
    raises_now(Fenced, desk.store, old, desk.event("late"))
    same(await desk.store.commit(new, desk.event("after")), 2)
    same(await desk.log(new.session), ["before", "after"])
    same(await desk.store.state(new.session), None)


@check
async def an_owner_that_takes_its_session_again_fences_itself(desk: Desk) -> None:
    old = await desk.lease("a")
    new = (await desk.take("a")).lease
    await raises(Fenced, desk.store.commit(old, desk.event()))
    same(await desk.store.commit(new, desk.event()), 1)


@check
async def a_commit_that_was_decided_on_an_older_revision_is_fenced(desk: Desk) -> None:
    lease = await desk.lease()
    copy = replace(lease, limbo=[])
    await desk.store.commit(lease, desk.event("one"))
    await raises(Fenced, desk.store.commit(copy, desk.event("two")))
    same(await desk.log(lease.session), ["one"])


@check
async def a_lease_on_a_session_that_does_not_exist_is_fenced(desk: Desk) -> None:
    lease = await desk.lease()
    lease.session = "s-unknown"
    await raises(Fenced, desk.store.commit(lease, desk.event()))


@check
async def commits_at_the_same_time_number_the_events_without_gap_or_double(desk: Desk) -> None:
    lease = await desk.lease()
    queued = [desk.store.commit(lease, *(desk.event(f"{n}") for _ in range(n % 4))) for n in range(60)]
    returned = await asyncio.gather(*queued)
    last = 0
    for n, seq in enumerate(returned):
        last += n % 4
        same(seq, last, f"what commit {n} returned")
    same(await desk.log(lease.session), [f"{n}" for n in range(60) for _ in range(n % 4)])


@check
async def sessions_that_commit_at_the_same_time_do_not_disturb_each_other(desk: Desk) -> None:
    leases = [await desk.lease("a", f"k{n}") for n in range(40)]

    async def work(number: int) -> None:
        for step in range(5):
            seq = await desk.store.commit(leases[number], desk.event(f"{number}.{step}"))
            same(seq, step + 1)

    await asyncio.gather(*(work(number) for number in range(40)))
    for number, lease in enumerate(leases):
        same(await desk.log(lease.session), [f"{number}.{step}" for step in range(5)])


@check
async def a_refused_commit_in_a_group_fails_alone(desk: Desk) -> None:
    leases = [await desk.lease("a", f"k{n}") for n in range(12)]
    await desk.open_fiber(leases[0], "f")
    bad = OpenFiber(desk.fiber(leases[0], "f"))
    queued = [
        desk.store.commit(lease, desk.event("good"), *([bad] if number in (3, 4, 9) else []))
        for number, lease in enumerate(leases)
    ]
    later = [desk.store.commit(lease, desk.event("later")) for lease in leases]
    for number, one in enumerate(queued):
        if number in (3, 4, 9):
            await raises(Conflict, one)
        else:
            same(await one, 1)
    await asyncio.gather(*later)
    for number, lease in enumerate(leases):
        same(await desk.log(lease.session), ["later"] if number in (3, 4, 9) else ["good", "later"])


@check
async def a_fenced_commit_in_a_group_fails_alone(desk: Desk) -> None:
    stale = await desk.lease("a", "stale")
    await desk.take("a", "stale")
    others = [await desk.lease("a", f"k{n}") for n in range(5)]
    queued = [desk.store.commit(lease, desk.event()) for lease in (*others, stale, *others)]
    await raises(Fenced, queued[5])
    same([await one for one in queued[:5]], [1] * 5)
    same([await one for one in queued[6:]], [2] * 5)


@check
async def commits_are_applied_in_the_order_of_their_queuing(desk: Desk) -> None:
    lease = await desk.lease()
    queued = [desk.store.commit(lease, PutState(f"{n}".encode(), n), desk.event(f"{n}")) for n in range(200)]
    await queued[-1]
    same(await desk.store.state(lease.session), (b"199", 199))
    same(await desk.log(lease.session), [f"{n}" for n in range(200)])
    await asyncio.gather(*queued)


@check
async def commit_now_comes_after_everything_that_was_queued_before(desk: Desk) -> None:
    lease = await desk.lease()
    queued = [desk.store.commit(lease, PutState(b"queued", n), desk.event()) for n in range(1, 1301)]
    same(desk.store.commit_now(lease, PutState(b"now", 1301), desk.event("now")), 1301)
    same(await desk.store.state(lease.session), (b"now", 1301))
    same(await asyncio.gather(*queued), list(range(1, 1301)))
    same((await desk.log(lease.session))[-1], "now")


@check
async def commit_now_in_a_thread_and_commits_in_the_loop_share_one_order(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")

    def block() -> list[int]:
        return [desk.store.commit_now(other, desk.event(f"{n}")) for n in range(50)]

    blocking = asyncio.create_task(asyncio.to_thread(block))
    returned = [await desk.store.commit(lease, desk.event(f"{n}")) for n in range(50)]
    same(returned, list(range(1, 51)))
    same(await blocking, list(range(1, 51)))


@check
async def a_commit_is_applied_though_nobody_waits_for_it(desk: Desk) -> None:
    lease = await desk.lease()
    desk.store.commit(lease, desk.event("left alone"))
    cancelled = desk.store.commit(lease, desk.event("cancelled"))
    cancelled.cancel()
    same(await desk.store.commit(lease, desk.event("awaited")), 3)
    same(await desk.log(lease.session), ["left alone", "cancelled", "awaited"])


@check
async def a_closed_store_refuses(desk: Desk) -> None:
    lease = await desk.lease()
    await desk.store.close()
    await raises(StoreUnavailable, desk.store.commit(lease, desk.event()))
    raises_now(StoreUnavailable, desk.store, lease, desk.event())
    await raises(StoreUnavailable, desk.store.session(lease.session))
