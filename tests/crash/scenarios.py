"""The reference scenarios of the crash sweep. Each is a function that makes a fresh one."""

import asyncio
from typing import Any

from perdure import (
    Agent,
    DidNotHappen,
    Fiber,
    FiberCancelled,
    FiberRecovery,
    Happened,
    Runtime,
    fiber,
)

from .world import World

STEPS = ("search", "analyse", "publish")


def skipping() -> World:
    """A fiber that skips finished work from its stash, and does each step with a `once` op."""
    world = World()

    class Skipping(Agent):
        @fiber
        async def work(self, f: Fiber, topic: str) -> list[str]:
            done: list[str] = f.stashed or []
            for step in STEPS:
                if step not in done:
                    await f.op(step, world.effect, step, effect="once")
                    done.append(step)
                    await f.stash(done)
            return done

    async def client(rt: Runtime) -> Any:
        session = rt.session(Skipping, "one")
        running = await session.start_once("work", Skipping.work, "topic")
        return await world.settled(session, lambda: session.wait(running.id))

    world.agents, world.client = [Skipping], client
    return world


def parallel() -> World:
    """Two branches of two `once` ops each."""
    world = World()

    class Parallel(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[list[str]]:
            async def branch(name: str) -> list[str]:
                first = await f.op(f"{name}1", world.effect, f"{name}1", effect="once")
                await asyncio.sleep(0)
                return [first, await f.op(f"{name}2", world.effect, f"{name}2", effect="once")]

            return await f.gather(branch("a"), branch("b"))

    async def client(rt: Runtime) -> Any:
        session = rt.session(Parallel, "one")
        running = await session.start_once("work", Parallel.work)
        return await world.settled(session, lambda: session.wait(running.id))

    world.agents, world.client = [Parallel], client
    return world


def certain() -> World:
    """Ops that leave no doubt: reads, a key the other side remembers, and one that can be verified."""
    world = World()
    charged: set[str] = set()

    class Certain(Agent):
        @fiber
        async def work(self, f: Fiber) -> list[Any]:
            read = await f.op("read", lambda: "text", effect="read")
            charged_now = await f.op("charge", self.charge, 5, effect="keyed")
            mailed = await f.op("mail", world.effect, "mail", effect="once", verify=self.mailed)
            async with f.scope("more"):
                more = await f.op("read", lambda: [1, 2], effect="read")
            named = await f.op("name", world.effect, "name", effect="once", key="name", verify=self.named)
            return [read, charged_now, mailed, more, named]

        def charge(self, amount: int) -> int:
            from perdure import current_op

            if world.alive and current_op().id not in charged:
                charged.add(current_op().id)
                world.effect("charge")
            return amount

        async def mailed(self, name: str) -> Happened | DidNotHappen:
            return Happened(name) if world.effects["mail"] else DidNotHappen()

        async def named(self, name: str) -> Happened | DidNotHappen:
            return Happened(name) if world.effects["name"] else DidNotHappen()

    async def client(rt: Runtime) -> Any:
        session = rt.session(Certain, "one")
        running = await session.start_once("work", Certain.work)
        return await session.wait(running.id)

    world.agents, world.client = [Certain], client
    return world


def hooked() -> World:
    """An ad-hoc function that its agent's hook takes up again, with its stash."""
    world = World()

    class Hooked(Agent):
        async def begin(self) -> str:
            return await self.run_fiber("count", lambda f: self.count(f, 0), key="count").started()

        async def count(self, f: Fiber, first: int) -> int:
            for number in range(first, 3):
                await f.op(f"n{number}", world.effect, f"n{number}", effect="once")
                await f.stash({"next": number + 1})
            return 3

        async def on_fiber_recovered(self, cut: FiberRecovery) -> None:
            first = cut.stash["next"] if cut.stash else 0
            self.run_fiber(cut.name, lambda f: self.count(f, first))

    async def client(rt: Runtime) -> Any:
        session = rt.session(Hooked, "one")
        running = await session.call(Hooked.begin)
        return await world.settled(session, lambda: session.wait(running))

    world.agents, world.client = [Hooked], client
    return world


def alarmed() -> World:
    """A fiber that sets an alarm, the alarm that nobody waits for, and the state it leaves."""
    world = World()

    class Alarmed(Agent):
        initial_state = 0

        @fiber
        async def begin(self, f: Fiber) -> None:
            await self.schedule(0, self.ring, "bell")

        async def ring(self, what: str) -> None:
            if self.state == 0:
                await self.set_state(1)

    async def client(rt: Runtime) -> Any:
        session = rt.session(Alarmed, "one")
        await (await session.start_once("begin", Alarmed.begin))
        while not (rung := [one for one in await session.ended() if one.name == "alarm:ring"]):
            await asyncio.sleep(0.001)
        left = [await session.alarms(), await session.fibers()]
        return [[one.outcome for one in rung], await session.state(), *left]

    world.agents, world.client = [Alarmed], client
    return world


def cancelled() -> World:
    """A fiber that is cancelled in mid-work, and must stay so."""
    world = World()

    class Cancelled(Agent):
        @fiber
        async def work(self, f: Fiber) -> None:
            await f.op("begin", world.effect, "begin", effect="read")
            await asyncio.sleep(3600)
            world.effect("never")

    async def client(rt: Runtime) -> Any:
        session = rt.session(Cancelled, "one")
        running = await session.start_once("work", Cancelled.work)
        identity = await running.started()
        while not await session.ops() and await session.fibers():
            await asyncio.sleep(0.001)
        await session.cancel(identity)
        try:
            await session.wait(identity)
        except FiberCancelled:
            return [one.outcome for one in await session.ended()]

    world.agents, world.client = [Cancelled], client
    return world
