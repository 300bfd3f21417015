"""Hosts that are killed at random moments, again and again, under a steady stream of work."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any

import pytest

from perdure.core.facts import OpRow

from .agents import BRANCH, CHAIN
from .hosts import HostProcess, Look, Stage
from .world import World

SESSIONS = 20
AT_ONCE = 20
PATIENT = {"patience": {"attempts": 1000, "attempts_ever": 100_000, "spacing": []}, "tryout": 0.01}
"""Settings: here it is not the fibers' fault that their hosts die."""


def label_of(op: OpRow) -> str:
    return op.args.decode()[2:-2]


async def settle_doubts(look: Look, world: World) -> list[str]:
    """What a person does who finds doubts: look, and tell the truth. Nobody needs to be there to hear it."""
    told: list[str] = []
    for op in await look.doubts():
        if any(op.id in row.body.decode() for row in await look.store.inputs(op.session)):
            continue
        label = label_of(op)
        assert op.kind == "once", f"{label} can be known, and is in doubt"
        happened = world.happened(label)
        await look.put(op.session, "resolve", op=op.id, happened=happened, result=label if happened else None)
        told.append(label)
    return told


async def cancel_the_endless(look: Look, world: World) -> None:
    """What a client does that was killed before it could cancel what it started."""
    cancelled = {one["fiber"] for one in world.seen("cancelled")}
    for row in await look.fibers():
        if row.name == "endless" and row.id not in cancelled:
            await look.put(row.session, "cancel", fiber=row.id)
            world.witness("cancel asked", fiber=row.id)


def next_number(world: World, prefix: str) -> int:
    return max((one["number"] for one in world.seen("accepted", prefix=prefix)), default=-1) + 1


def begin_traffic(host: HostProcess, world: World, prefix: str = "n") -> None:
    host.ready()
    host.send("traffic", first=next_number(world, prefix), sessions=SESSIONS, at_once=AT_ONCE, prefix=prefix)


async def finish(stage: Stage, look: Look) -> None:
    """Wait until nothing is open any more, with doubts settled as they come up."""

    async def all_ended() -> bool:
        await settle_doubts(look, stage.world)
        return not await look.fibers() and not await look.open_ops()

    try:
        await look.until("everything has ended", all_ended, seconds=60)
    except AssertionError as late:
        left = [(row.name, row.parked, row.attempt, row.host) for row in await look.fibers()]
        raise AssertionError(f"{late}: {left}, doubts: {await look.doubts()}") from None


async def check(stage: Stage, look: Look) -> dict[str, int]:
    """Safety: nothing accepted is lost, nothing known is done again, nothing irreversible happens twice.
    Liveness: everything ended as it should."""
    world = stage.world
    accepted = {one["fiber"]: one for one in world.seen("accepted")}
    assert len({one["name"] for one in accepted.values()}) == len(accepted)
    outcomes: Counter[str] = Counter()
    for fiber, one in accepted.items():
        ended = await look.store.ended_fiber(fiber)
        assert ended is not None, f"{one} was accepted and is lost (P1)"
        outcomes[ended.outcome] += 1
        if one["kind"] == "endless":
            assert ended.outcome == "cancelled", one
        else:
            assert (ended.outcome, ended.value) == ("done", result_of(one)), one
    check_steps(world)
    check_effects(world, accepted)
    await look.check_logs()
    return dict(outcomes)


def result_of(one: dict[str, Any]) -> bytes:
    name = one["name"]
    labels = [f"{name}.{n}" for n in range(len(CHAIN))]
    if one["kind"] == "branches":
        labels = [f"{name}.{side}{n}" for side in "ab" for n in range(len(BRANCH))]
    return json.dumps(labels, separators=(",", ":")).encode()


def check_steps(world: World) -> None:
    """P6: what a fiber once knew is never asked for again. Each place keeps its identity. And P5."""
    known: set[str] = set()
    ids: dict[str, str] = {}
    gone: set[str] = set()
    for one in world.seen():
        match one["what"]:
            case "known":
                known.add(one["label"])
            case "called":
                assert one["label"] not in known, f"called after it was known: {story(world, one['label'])}"
                assert ids.setdefault(one["label"], one["op"]) == one["op"]
            case "cancelled":
                gone.add(one["fiber"])
            case "entered":
                assert one["fiber"] not in gone, (
                    f"entered after it was cancelled: {story(world, one['fiber'])}"
                )
            case "refused":
                pytest.fail(f"a client was refused: {one}")
            case _:
                pass


def story(world: World, of: str) -> str:
    """What was witnessed of a fiber or a label, to be shown."""
    return "".join(f"\n  {one}" for one in world.seen() if of in (one.get("fiber"), one.get("label")))


def check_effects(world: World, accepted: dict[str, Any]) -> None:
    effects = world.effects()
    doubled = {label: count for label, count in effects.items() if count > 1}
    assert doubled == {}, f"done twice: {doubled}"
    for one in accepted.values():
        for label in acting_labels(one):
            assert effects[label] == 1, f"{label} never happened: {story(world, label)}"


def acting_labels(one: dict[str, Any]) -> list[str]:
    match one["kind"]:
        case "endless":
            return []
        case "branches":
            return [
                f"{one['name']}.{side}{n}" for side in "ab" for n, how in enumerate(BRANCH) if how != "read"
            ]
        case _:
            return [f"{one['name']}.{n}" for n, how in enumerate(CHAIN) if how != "read"]


async def kill_again_and_again(stage: Stage, kills: int, seed: int) -> dict[str, int]:
    """One host after the other; one in six is killed before it is a host."""
    chance = random.Random(seed)
    doubted: list[str] = []
    while stage.kills < kills:
        host = stage.start(settings=PATIENT)
        if chance.random() < 1 / 6:
            time.sleep(chance.random() * 0.25)
        else:
            begin_traffic(host, stage.world)
            time.sleep(chance.random() * 0.2)
        assert not host.ended, host.shown()
        host.kill()
        stage.forget_dead()
        async with stage.look() as look:
            doubted += await settle_doubts(look, stage.world)
    return {**await to_the_end(stage, [stage.start(settings=PATIENT)]), "doubted": len(doubted)}


async def to_the_end(stage: Stage, hosts: list[HostProcess]) -> dict[str, int]:
    """Let the work end, and check it. How many fibers ended in which way."""
    for host in hosts:
        host.ready()
    async with stage.look() as look:
        await cancel_the_endless(look, stage.world)
        await finish(stage, look)
        outcomes = await check(stage, look)
    for host in hosts:
        host.terminate()
        assert host.wait() == 0, host.shown()
    return outcomes


@pytest.mark.timeout(300)
@pytest.mark.parametrize("lane", [1, 2])
async def test_nothing_is_lost_or_doubled_by_seventy_five_kills(sqlite_stage: Stage, lane: int) -> None:
    found = await kill_again_and_again(sqlite_stage, 75, seed=lane)
    assert found["done"] > 50
    assert found["cancelled"] > 10
    assert found["doubted"] > 10
    assert sqlite_stage.kills == 75


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lane", [3, 4, 5, 6])
async def test_nothing_is_lost_or_doubled_by_a_thousand_kills(sqlite_stage: Stage, lane: int) -> None:
    await kill_again_and_again(sqlite_stage, 250, seed=lane)
    assert sqlite_stage.kills == 250


# --- two hosts on one database: whichever is killed, the other one goes on


LASTING = {**PATIENT, "lease_lives": 2.0, "hold": 0.3}
"""Settings: a host that lives keeps its lease, also on a busy machine."""


async def kill_one_of_two(stage: Stage, kills: int, seed: int) -> dict[str, int]:
    chance = random.Random(seed)

    def begin(slot: int) -> HostProcess:
        host = stage.start(settings=LASTING)
        begin_traffic(host, stage.world, prefix=f"{'ab'[slot]}")
        return host

    hosts = [begin(0), begin(1)]
    async with stage.look() as look:
        while stage.kills < kills:
            time.sleep(chance.random() * 1.5)
            slot = chance.randrange(2)
            hosts[slot].kill()
            await settle_doubts(look, stage.world)
            stage.forget_dead()
            hosts[slot] = begin(slot)
    for host in hosts:
        host.kill()
    return await to_the_end(stage, [stage.start(settings=LASTING), stage.start(settings=LASTING)])


@pytest.mark.timeout(300)
async def test_nothing_is_lost_or_doubled_on_postgres(postgres_stage: Stage) -> None:
    found = await kill_one_of_two(postgres_stage, 12, seed=7)
    assert found["done"] > 30
    assert found["cancelled"] > 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lane", [8, 9])
async def test_nothing_is_lost_or_doubled_by_many_kills_on_postgres(postgres_stage: Stage, lane: int) -> None:
    await kill_one_of_two(postgres_stage, 100, seed=lane)
