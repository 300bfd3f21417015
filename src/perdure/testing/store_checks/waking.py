"""What wakes a session: alarms, inputs, and work that nobody has; and whom it wakes."""

from __future__ import annotations

from ...core.errors import Conflict, NotFound
from ...core.writes import (
    DropAlarm,
    EnterFiber,
    HandOver,
    OpenFiber,
    ParkFiber,
    PutAlarm,
    TakeInput,
    UnparkFiber,
)
from ..desk import LIVES, Desk, check, raises, same


@check
async def alarms_are_set_moved_and_dropped(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    first, second = desk.alarm(lease, "1", due_in=2_000), desk.alarm(lease, "2", due_in=1_000, key="k")
    beat = desk.alarm(lease, "beat", kind="keepalive")
    await desk.store.commit(lease, PutAlarm(first), PutAlarm(second), PutAlarm(beat))
    same(await desk.store.alarms(lease.session), [second, first], "set alarms, but no keepalive")
    moved = first._replace(due_at=first.due_at - 1_500, args=b"[2]", spec=b"[]", method="other")
    await desk.store.commit(lease, PutAlarm(moved))
    same(await desk.store.alarms(lease.session), [moved, second])
    await desk.store.commit(other, DropAlarm("1"))
    same(len(await desk.store.alarms(lease.session)), 2, "alarms that another session cannot drop")
    await desk.store.commit(lease, DropAlarm("1"))
    same(await desk.store.alarms(lease.session), [second])


@check
async def an_alarm_is_due_at_its_time_and_not_before(desk: Desk) -> None:
    lease = await desk.lease()
    alarm, beat = desk.alarm(lease, due_in=500), desk.alarm(lease, "beat", due_in=500, kind="keepalive")
    later = desk.alarm(lease, "later", due_in=60_000)
    await desk.store.commit(lease, PutAlarm(alarm), PutAlarm(beat), PutAlarm(later))
    await desk.clock.advance(0.499)
    same(await desk.store.due_alarms(lease.session), [])
    same(await desk.due("a"), [])
    await desk.clock.advance(0.001)
    same(await desk.store.due_alarms(lease.session), [alarm, beat])
    same(await desk.due("a"), ["k"])


@check
async def the_next_alarm_is_known(desk: Desk) -> None:
    lease, other = await desk.lease("a", "one"), await desk.lease("a", "two")
    same(await desk.store.next_due_at(), None)
    await desk.store.commit(lease, PutAlarm(desk.alarm(lease, "1", due_in=2_000)))
    await desk.store.commit(other, PutAlarm(desk.alarm(other, "2", due_in=1_000)))
    same(await desk.store.next_due_at(), desk.now + 1_000)
    same(await desk.store.next_due_at(desk.now + 1_000), desk.now + 2_000)
    same(await desk.store.next_due_at(desk.now + 2_000), None)


async def _one_of_each(desk: Desk, host: str) -> list[str]:
    """Sessions of `host` with work, an alarm, an input, and nothing. Returns the keys to wake if it dies."""
    leases = {key: await desk.lease(host, f"{host} {key}") for key in ("fiber", "alarm", "input", "idle")}
    await desk.open_fiber(leases["fiber"], f"fiber of {host}")
    alarm = desk.alarm(leases["alarm"], f"alarm of {host}", due_in=0)
    await desk.store.commit(leases["alarm"], PutAlarm(alarm))
    await desk.store.put_input(desk.input(leases["input"].session, f"input of {host}"))
    return [f"{host} {key}" for key in ("alarm", "fiber", "input")]


@check
async def the_work_of_a_live_host_is_due_for_nobody_else(desk: Desk) -> None:
    await _one_of_each(desk, "a")
    await desk.host("b")
    same(await desk.due("b"), [])
    same(await desk.due("a"), ["a alarm", "a input"], "due for their owner")


@check
async def the_work_of_a_dead_host_is_due_for_everybody(desk: Desk) -> None:
    wanted = await _one_of_each(desk, "a")
    await desk.host("b", lives=10 * LIVES)
    await desk.clock.advance((LIVES - 1) / 1000)
    same(await desk.due("b"), [])
    await desk.clock.advance(0.001)
    same(await desk.due("b"), wanted)
    same(await desk.due("c"), wanted)


@check
async def the_work_of_a_retired_host_is_due_at_once(desk: Desk) -> None:
    wanted = await _one_of_each(desk, "a")
    await _one_of_each(desk, "c")
    await desk.host("b")
    await desk.retire("a")
    same(await desk.due("b"), wanted)


@check
async def handed_over_fibers_are_due_at_once(desk: Desk) -> None:
    lease = await desk.lease("a")
    await desk.open_fiber(lease)
    await desk.store.commit(lease, HandOver())
    await desk.host("b")
    same(await desk.due("b"), ["k"])
    await desk.host("c")
    taken = await desk.take("c")
    await desk.store.commit(taken.lease, EnterFiber(taken.fibers[0]._replace(host="c", epoch=2)))
    same(await desk.due("b"), [], "another host took it up")


@check
async def a_fiber_that_waits_for_an_answer_is_never_due(desk: Desk) -> None:
    lease = await desk.lease("a")
    fiber = await desk.open_fiber(lease)
    await desk.store.commit(lease, ParkFiber(fiber.id, b'"why"'))
    await desk.retire("a")
    await desk.host("b")
    same(await desk.due("b"), [])
    lease = (await desk.take("b")).lease
    await desk.store.commit(lease, UnparkFiber(fiber.id))
    same(await desk.due("b"), ["k"], "answered, and not entered yet")


@check
async def a_session_that_was_taken_from_a_dead_host_is_due_for_its_new_owner_only(desk: Desk) -> None:
    await desk.open_fiber(await desk.lease("a"))
    await desk.retire("a")
    await desk.host("b")
    await desk.host("c")
    await desk.take("b")
    same(await desk.due("b"), ["k"])
    same(await desk.due("c"), [])


@check
async def an_input_is_accepted_once(desk: Desk) -> None:
    lease = await desk.lease()
    row = desk.input(lease.session, "i1", b"\x00 body")
    same(await desk.store.put_input(row), True)
    same(await desk.store.put_input(row._replace(body=b"other")), False)
    same(await desk.store.inputs(lease.session), [row])


@check
async def an_input_for_an_unknown_session_is_refused(desk: Desk) -> None:
    await raises(NotFound, desk.store.put_input(desk.input("s-unknown")))
    same(await desk.store.inputs("s-unknown"), [])


@check
async def inputs_wait_in_the_order_of_their_acceptance(desk: Desk) -> None:
    lease = await desk.lease()
    ids = ["z", "m", "a", "x", "b"]
    for id in ids:
        await desk.store.put_input(desk.input(lease.session, id))
    same([row.id for row in await desk.store.inputs(lease.session)], ids, "accepted in one millisecond")


@check
async def an_input_leaves_in_the_commit_that_acts_on_it(desk: Desk) -> None:
    lease = await desk.lease()
    await desk.store.put_input(desk.input(lease.session, "i1"))
    await desk.store.put_input(desk.input(lease.session, "i2"))
    await desk.open_fiber(lease, "f")
    bad = OpenFiber(desk.fiber(lease, "f"))
    await raises(Conflict, desk.store.commit(lease, TakeInput("i1"), bad))
    same([row.id for row in await desk.store.inputs(lease.session)], ["i1", "i2"])
    await desk.store.commit(lease, TakeInput("i1"), desk.event("taken"))
    same([row.id for row in await desk.store.inputs(lease.session)], ["i2"])
    same(await desk.due("a"), ["k"])
    await desk.store.commit(lease, TakeInput("i2"))
    same(await desk.due("a"), [])
