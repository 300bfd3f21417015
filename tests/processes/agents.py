"""The agents that the tests kill. What they do to the world is in `WORLD`'s files."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import Any, cast

from perdure import (
    Agent,
    DidNotHappen,
    Every,
    Fiber,
    FiberCancelled,
    FiberRecovery,
    Happened,
    Interrupted,
    OwnedElsewhere,
    PerdureError,
    Runtime,
    current_fiber,
    current_op,
    fiber,
)

from .world import World

WORLD = cast("World", None)
"""Set by whoever runs these agents."""

CHANCE = random.Random()
SHORT = 0.004
"""The longest pause (seconds) within an op of the random workload."""

CHAIN = ("read", "keyed", "sure", "once", "read", "once", "keyed", "read")
BRANCH = ("sure", "once", "read")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def passed(gate: str) -> None:
    while not WORLD.is_open(gate):
        await asyncio.sleep(0.01)


async def pause() -> None:
    await asyncio.sleep(CHANCE.random() * SHORT)


# --- ops: each is seen being called, has its effect, and is seen when its result is known


async def do(f: Fiber, label: str, how: str) -> str:
    """One op of the random workload. `how`: an effect, or `sure` for a `once` that can be verified."""
    if how == "sure":
        value = await f.op(how, act, label, effect="once", verify=did_act)
    elif how == "once":
        value = await f.op(how, act, label, effect="once")
    elif how == "keyed":
        value = await f.op(how, act_by_key, label, effect="keyed")
    else:
        value = await f.op(how, look, label, effect="read")
    WORLD.witness("known", label=label)
    return value


async def look(label: str) -> str:
    WORLD.witness("called", label=label, op=current_op().id)
    await pause()
    return label


async def act(label: str) -> str:
    WORLD.witness("called", label=label, op=current_op().id)
    await pause()
    WORLD.effect(label, current_op().id)
    await pause()
    return label


async def act_by_key(label: str) -> str:
    """The other side knows the key again."""
    WORLD.witness("called", label=label, op=current_op().id)
    await pause()
    if not WORLD.happened(label):
        WORLD.effect(label, current_op().id)
    await pause()
    return label


async def did_act(label: str) -> Happened | DidNotHappen:
    await pause()
    return Happened(label) if WORLD.happened(label) else DidNotHappen()


# --- the random workload


class Worker(Agent):
    """Fibers of all kinds, of many ops."""

    @fiber
    async def chain(self, f: Fiber, name: str) -> list[str]:
        """Skips finished work from its stash."""
        WORLD.witness("entered", fiber=f.id)
        return await self.go_on(f, name)

    @fiber
    async def branches(self, f: Fiber, name: str) -> list[str]:
        WORLD.witness("entered", fiber=f.id)

        async def branch(side: str) -> list[str]:
            return [await do(f, f"{name}.{side}{n}", how) for n, how in enumerate(BRANCH)]

        left, right = await f.gather(branch("a"), branch("b"))
        return left + right

    async def adhoc(self, name: str) -> str:
        """A fiber that only the hook can take up again."""
        return await self.run_fiber(name, lambda f: self.go_on(f, name), key=name).started()

    async def on_fiber_recovered(self, cut: FiberRecovery) -> None:
        await pause()
        self.run_fiber(cut.name, lambda f: self.go_on(f, cut.name))

    @fiber
    async def endless(self, f: Fiber, name: str) -> None:
        """Ends only by being cancelled. What it learns while that is being written is not kept."""
        WORLD.witness("entered", fiber=f.id)
        for n in range(1_000_000):
            await f.op("read", look, f"{name}.{n}", effect="read")
            await asyncio.sleep(0.05)

    async def go_on(self, f: Fiber, name: str) -> list[str]:
        done: list[str] = f.stashed or []
        for n, how in enumerate(CHAIN):
            if n >= len(done):
                done.append(await do(f, f"{name}.{n}", how))
                if n % 3 == 1:
                    await f.stash(done)
        return done


KINDS = ("chain", "branches", "adhoc", "chain", "endless")


async def traffic(rt: Runtime, first: int, sessions: int, at_once: int, prefix: str = "n") -> None:
    """A client that starts fibers as fast as they end, from number `first` on, until it is killed."""
    room = asyncio.Semaphore(at_once)
    watching: set[asyncio.Task[None]] = set()
    number = first
    while True:
        await room.acquire()
        kind, name = KINDS[number % len(KINDS)], f"{prefix}{number}"
        session = rt.session(Worker, f"s{number % sessions}")
        try:
            identity = await _start(session, kind, name)
        except OwnedElsewhere:
            room.release()
        else:
            WORLD.witness("accepted", fiber=identity, name=name, kind=kind, number=number, prefix=prefix)
            watching.add(task := asyncio.ensure_future(_see_through(session, identity, kind)))
            task.add_done_callback(lambda ended: (watching.discard(ended), room.release()))
        number += 1


async def _start(session: Any, kind: str, name: str) -> str:
    if kind == "adhoc":
        return await session.call(Worker.adhoc, name)
    return (await session.start_once(name, getattr(Worker, kind), name)).id


async def _see_through(session: Any, identity: str, kind: str) -> None:
    try:
        if kind == "endless":
            await asyncio.sleep(CHANCE.random() * 0.05)
            await session.cancel(identity)
            WORLD.witness("cancelled", fiber=identity)
        await session.wait(identity)
    except (Interrupted, FiberCancelled, OwnedElsewhere):
        return
    except PerdureError as error:
        WORLD.witness("refused", fiber=identity, error=repr(error))


# --- agents of single tests


class Steps(Agent):
    """One fiber that does each step with a `once` op, and skips finished ones from its stash."""

    @fiber
    async def work(self, f: Fiber) -> list[str]:
        done: list[str] = f.stashed or []
        for step in ("search", "pay", "publish"):
            if step not in done:
                await f.op(step, WORLD.effect, step, effect="once")
                done.append(step)
                await f.stash(done)
        return done


class Waiter(Agent):
    """Fibers that stand still until a gate is opened."""

    @fiber
    async def wait(self, f: Fiber, gate: str) -> int:
        WORLD.witness("entered", fiber=f.id, attempt=f.attempt)
        await passed(gate)
        return f.attempt

    @fiber
    async def op(self, f: Fiber, effect: Any, gate: str, verified: bool = False) -> str:
        """One op that takes until the gate is open, and then has its effect."""
        WORLD.witness("entered", fiber=f.id, attempt=f.attempt)

        async def call(gate: str) -> str:
            WORLD.witness("called", op=current_op().id, fiber=f.id)
            await passed(gate)
            return WORLD.effect(f.id, current_op().id)

        async def verify(gate: str) -> Happened | DidNotHappen:
            return Happened(f.id) if WORLD.happened(f.id) else DidNotHappen()

        return await f.op("act", call, gate, effect=effect, verify=verify if verified else None)

    @fiber
    async def acted(self, f: Fiber, gate: str) -> str:
        """One `once` op that has its effect at once, and answers when the gate is open."""
        WORLD.witness("entered", fiber=f.id, attempt=f.attempt)

        async def call(gate: str) -> str:
            WORLD.effect(f.id, current_op().id)
            WORLD.witness("acted", op=current_op().id, fiber=f.id)
            await passed(gate)
            return f.id

        return await f.op("act", call, gate, effect="once")

    @fiber
    async def told(self, f: Fiber, gate: str) -> str:
        """One `once` op that answers when the gate is open."""

        async def call(gate: str) -> str:
            WORLD.witness("called", op=current_op().id, fiber=f.id)
            await passed(gate)
            return "answer"

        return await f.op("ask", call, gate, effect="once")

    @fiber
    async def steps(self, f: Fiber, count: int) -> list[int]:
        """Recorded reads, one after the other, each a moment long."""
        WORLD.witness("entered", fiber=f.id, attempt=f.attempt)

        async def step(number: int) -> int:
            WORLD.witness("step", number=number, fiber=f.id)
            await asyncio.sleep(0.02)
            return number

        return [await f.op("step", step, number, effect="read") for number in range(count)]


class Hooked(Agent):
    """An ad-hoc fiber whose hook is where it dies."""

    async def begin(self, name: str) -> str:
        async def body(f: Fiber) -> None:
            await f.stash({"from": name})
            WORLD.witness("stashed", fiber=f.id)
            await passed("never")

        return await self.run_fiber(name, body).started()

    async def on_fiber_recovered(self, cut: FiberRecovery) -> None:
        WORLD.witness("hook", fiber=cut.id, attempt=cut.attempt)
        if cut.name == "deadly" or cut.attempt < 4:
            die()
        stash = cut.stash

        async def body(f: Fiber) -> Any:
            return [stash, f.attempt]

        self.run_fiber(cut.name, body)


class Ringer(Agent):
    async def set_once(self, delay: float) -> int:
        return (await self.schedule(delay, self.ring, "once")).due_at

    async def set_every(self, seconds: float) -> int:
        return (await self.schedule(Every(seconds), self.ring, "every", key="every")).due_at

    async def ring(self, what: str) -> None:
        WORLD.witness("rang", which=what, fiber=current_fiber().id)


class Busy(Agent):
    """Fibers that never yield."""

    @fiber
    async def awaited(self, f: Fiber) -> Any:
        if f.stashed:
            return f.stashed
        await f.stash({"by": "stash"})
        WORLD.witness("busy", fiber=f.id)
        self.compute_for_ever()

    @fiber
    async def now(self, f: Fiber) -> Any:
        if f.stashed:
            return f.stashed
        f.stash_now({"by": "stash_now"})
        WORLD.witness("busy", fiber=f.id)
        self.compute_for_ever()

    @fiber
    async def until(self, f: Fiber, gate: str) -> int:
        """Does not yield until the gate is open; but yields in its second life."""
        WORLD.witness("busy", fiber=f.id, attempt=f.attempt)
        if f.attempt == 0:
            self.compute_until(gate)
        await f.op("report", WORLD.effect, f"reported-{f.id}", effect="once")
        return f.attempt

    def compute_for_ever(self) -> None:
        while True:
            pass

    def compute_until(self, gate: str) -> None:
        while not WORLD.is_open(gate):
            time.sleep(0)


class Killer(Agent):
    @fiber
    async def kill(self, f: Fiber) -> None:
        WORLD.witness("killer", attempt=f.attempt)
        die()


ALL = (Worker, Steps, Waiter, Hooked, Ringer, Busy, Killer)
