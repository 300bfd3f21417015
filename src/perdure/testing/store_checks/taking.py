"""Taking a session: who gets it, and when."""

from __future__ import annotations

import asyncio

from ...core.errors import OwnedElsewhere
from ...core.identity import session_id
from ...core.writes import HandOver, ParkFiber, PutAlarm, PutState
from ..desk import AGENT, HOLD, LIVES, Desk, Failure, check, raises, same


@check
async def the_first_take_creates_the_session(desk: Desk) -> None:
    await desk.host("a")
    taken = await desk.take("a", "new")
    row = taken.session
    same((row.id, row.agent, row.key), (session_id(AGENT, "new"), AGENT, "new"))
    same((row.host, row.epoch, row.revision, row.seq), ("a", 1, 0, 0))
    same((row.created_at, row.terminated_at), (desk.now, None))
    same((taken.lease.session, taken.lease.host, taken.lease.epoch), (row.id, "a", 1))
    same(taken.fibers, ())
    same(taken.suspects, {})
    same((taken.state, taken.state_version), (None, 0))
    same(await desk.store.session(row.id), row)


@check
async def each_take_raises_the_epoch_and_goes_on_with_the_log(desk: Desk) -> None:
    lease = await desk.lease()
    await desk.store.commit(lease, desk.event("one"))
    taken = await desk.take("a")
    same((taken.session.epoch, taken.session.revision, taken.session.seq), (2, 1, 1))
    same(await desk.store.commit(taken.lease, desk.event("two")), 2)


@check
async def a_take_brings_the_fibers_and_the_state(desk: Desk) -> None:
    lease = await desk.lease()
    first = await desk.open_fiber(lease, "f1")
    await desk.clock.advance(1)
    second = await desk.open_fiber(lease, "f2", parked=b'"why"', host=None)
    await desk.store.commit(lease, PutState(b'{"n": 7}', 7))
    taken = await desk.take("a")
    same(taken.fibers, (first, second))
    same((taken.state, taken.state_version), (b'{"n": 7}', 7))


@check
async def a_live_owner_with_work_keeps_its_session(desk: Desk) -> None:
    lease = await desk.lease("a")
    await desk.open_fiber(lease)
    await desk.clock.advance(HOLD / 1000 * 2)
    await desk.host("b")
    error = await raises(OwnedElsewhere, desk.take("b"))
    if "a of the exam" not in str(error):
        raise Failure(f"the error does not name the owner by its label: {error}")
    same(await desk.store.commit(lease, desk.event()), 1, "the owner still writes")


@check
async def a_live_owner_without_work_keeps_its_session_for_the_hold_time_only(desk: Desk) -> None:
    await desk.lease("a")
    await desk.host("b")
    await desk.clock.advance((HOLD - 1) / 1000)
    await raises(OwnedElsewhere, desk.take("b"))
    await desk.clock.advance(0.001)
    same((await desk.take("b")).session.host, "b")


@check
async def a_fiber_that_waits_for_an_answer_is_no_work(desk: Desk) -> None:
    lease = await desk.lease("a")
    fiber = await desk.open_fiber(lease)
    await desk.store.commit(lease, ParkFiber(fiber.id, b'"why"'))
    await desk.clock.advance(HOLD / 1000)
    await desk.host("b")
    same((await desk.take("b")).session.epoch, 2)


@check
async def an_alarm_in_the_future_is_no_work_but_a_keepalive_is(desk: Desk) -> None:
    lease = await desk.lease("a")
    await desk.store.commit(lease, PutAlarm(desk.alarm(lease, "later", due_in=3_600_000)))
    await desk.clock.advance(HOLD / 1000)
    await desk.host("b")
    lease = (await desk.take("b")).lease
    await desk.store.commit(lease, PutAlarm(desk.alarm(lease, "beat", due_in=3_600_000, kind="keepalive")))
    await desk.clock.advance(HOLD / 1000)
    await raises(OwnedElsewhere, desk.take("a"))


@check
async def a_dead_owner_loses_its_session_at_once(desk: Desk) -> None:
    lease = await desk.lease("a")
    fiber = await desk.open_fiber(lease)
    await desk.clock.advance((LIVES - 1) / 1000)
    await desk.host("b")
    await raises(OwnedElsewhere, desk.take("b"))
    await desk.clock.advance(0.001)
    taken = await desk.take("b")
    same((taken.session.epoch, taken.fibers), (2, (fiber,)))


@check
async def a_lenient_host_waits_longer_for_another_one(desk: Desk) -> None:
    await desk.open_fiber(await desk.lease("a"))
    await desk.host("b", lives=10 * LIVES)
    await desk.clock.advance((LIVES + 1_999) / 1000)
    await raises(OwnedElsewhere, desk.store.take(AGENT, "k", host="b", hold=HOLD, lenient=2_000))
    same(await desk.store.due("b", lenient=2_000), [])
    await desk.clock.advance(0.001)
    same([one.key for one in await desk.store.due("b", lenient=2_000)], ["k"])
    taken = await desk.store.take(AGENT, "k", host="b", hold=HOLD, lenient=2_000)
    same(taken.session.host, "b")


@check
async def a_renewed_lease_lives_on(desk: Desk) -> None:
    await desk.open_fiber(await desk.lease("a"))
    await desk.host("b", lives=10 * LIVES)
    for _ in range(3):
        await desk.clock.advance(LIVES / 1000 - 1)
        await raises(OwnedElsewhere, desk.take("b"))
        await desk.host("a")
    same(await desk.store.owner_lives(session_id(AGENT, "k")), True)
    await desk.clock.advance(LIVES / 1000)
    same(await desk.store.owner_lives(session_id(AGENT, "k")), False)
    same((await desk.take("b")).session.host, "b")


@check
async def a_retired_owner_loses_its_session_at_once(desk: Desk) -> None:
    lease = await desk.lease("a")
    await desk.open_fiber(lease)
    await desk.host("b")
    await desk.retire("a")
    same(await desk.store.owner_lives(lease.session), False)
    same((await desk.take("b")).session.host, "b")


@check
async def a_handed_over_session_can_be_taken_by_anyone(desk: Desk) -> None:
    lease = await desk.lease("a")
    fiber = await desk.open_fiber(lease)
    await desk.store.commit(lease, HandOver(), desk.event("over"))
    row = await desk.store.session(lease.session)
    same(row and row.host, None)
    await desk.host("b")
    taken = await desk.take("b")
    same(taken.fibers, (fiber._replace(host=None),))
    same(await desk.log(lease.session), ["over"])


@check
async def of_twelve_hosts_that_take_one_session_exactly_one_gets_it(desk: Desk) -> None:
    hosts = [await desk.host(f"h{n}") for n in range(12)]
    for key, beginning in (("new", 0), ("old", 1)):
        if beginning:
            await desk.lease("dead", key)
            await desk.retire("dead")
        takes = (desk.take(host, key) for host in hosts)
        results = await asyncio.gather(*takes, return_exceptions=True)
        won = [one for one in results if not isinstance(one, BaseException)]
        lost = [one for one in results if isinstance(one, OwnedElsewhere)]
        same((len(won), len(lost)), (1, 11), f"winners and losers of the {key} session")
        same(won[0].session.epoch, beginning + 1)


@check
async def a_host_that_died_while_it_tried_out_a_fiber_names_it(desk: Desk) -> None:
    lease = await desk.lease("a")
    await desk.open_fiber(lease, "good")
    await desk.open_fiber(lease, "bad")
    await desk.store.suspect("a", "bad")
    await desk.retire("a")
    await desk.host("b")
    taken = await desk.take("b")
    same(taken.suspects, {"a": "bad"})
    await desk.store.suspect("a", None)
    same((await desk.take("b")).suspects, {})
