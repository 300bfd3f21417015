"""Alarms with nobody connected: whoever is a host fires them."""

from __future__ import annotations

import time

from .hosts import Stage
from .world import wait_until

RINGER = {"agent": "Ringer", "key": "one"}
HOUR = 3_600_000


async def test_an_alarm_fires_after_its_host_was_killed(stage: Stage) -> None:
    host = stage.host()
    due_at = host.ask("call", **RINGER, method="set_once", args=[0.5])
    host.kill()
    assert stage.world.seen("rang") == []
    stage.host()
    stage.world.wait_for("rang", which="once")
    async with stage.look() as look:
        assert look.store.now() >= due_at
        (session,) = await look.sessions()
        assert await look.store.alarms(session.id) == []


async def test_an_alarm_that_became_due_while_nobody_lived_fires_once(stage: Stage) -> None:
    host = stage.host()
    due_at = host.ask("call", **RINGER, method="set_once", args=[0.3])
    host.kill()
    async with stage.look() as look:
        wait_until("it is due", lambda: look.store.now() > due_at + 100)
        for _ in range(3):
            host = stage.host()
            fiber = stage.world.wait_for("rang")["fiber"]
            await look.ended(fiber)
            host.kill()
    assert len(stage.world.seen("rang")) == 1


async def test_an_hour_of_missed_runs_is_one_run(sqlite_stage: Stage) -> None:
    """On SQLite the host's clock counts: the second host lives an hour later."""
    stage = sqlite_stage
    host = stage.host()
    first_due_at = host.ask("call", **RINGER, method="set_every", args=[60])
    host.kill()
    host = stage.host(clock_off_by=HOUR)
    rang = stage.world.wait_for("rang", which="every")
    async with stage.look() as look:
        await look.ended(rang["fiber"])
        (session,) = await look.sessions()
        (alarm,) = await look.store.alarms(session.id)
        now = int(rang["at"] * 1000) + HOUR
        assert now < alarm.due_at <= now + 60_000
        assert (alarm.due_at - first_due_at) % 60_000 == 0
        host.ask("nothing")
        assert len(await look.store.ended(session.id)) == 1
    assert len(stage.world.seen("rang")) == 1


async def test_missed_runs_are_one_run_by_the_clock_of_the_database(postgres_stage: Stage) -> None:
    stage = postgres_stage
    every = 0.1
    host = stage.host()
    due_at = host.ask("call", **RINGER, method="set_every", args=[every])
    host.kill()
    before = len(stage.world.seen("rang"))
    async with stage.look() as look:
        wait_until("many runs were missed", lambda: look.store.now() > due_at + 30 * every * 1000)
    back_at = time.time()
    stage.host()
    stage.world.wait_for("rang", times=before + 12)
    for count, rang in enumerate(stage.world.seen("rang")[before:], start=1):
        assert count <= 1 + (rang["at"] - back_at) / every + 1


async def test_the_run_that_its_host_did_not_survive_is_taken_up(stage: Stage) -> None:
    """Killed when the alarm had left its row for a fiber."""
    host = stage.start(signal={"how": "after", "write": "OpenFiber + DropAlarm"})
    host.ready().send("call", **RINGER, method="set_once", args=[0])
    assert host.wait() == -9
    assert stage.world.seen("rang") == []
    stage.host()
    fiber = stage.world.wait_for("rang")["fiber"]
    async with stage.look() as look:
        assert (await look.ended(fiber)).outcome == "done"
        assert await look.fibers() == []
    assert len(stage.world.seen("rang")) == 1
