from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, Every, Fiber, Interrupted, Runtime, Session, fiber
from perdure.cli import run


@dataclass(frozen=True)
class Said:
    """What one run of the command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        return json.loads(self.err)["error"]


Perdure = Callable[..., Awaitable[Said]]


@pytest.fixture
def perdure(capsys: pytest.CaptureFixture[str]) -> Perdure:
    """Run the command within this process, on a thread of its own: a host may run beside it."""

    async def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = await asyncio.to_thread(run, arguments)
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return call


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """Return when the condition holds; fail if that takes ten seconds."""
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.01)


def perdure_process(*arguments: str, **environment: str) -> Said:
    """Run the installed command in a process of its own."""
    command = Path(sys.executable).with_name("perdure")
    done = subprocess.run([command, *arguments], env=environment, capture_output=True, text=True, timeout=30)
    return Said(done.returncode, done.stdout, done.stderr)


class Shop(Agent):
    """Its payment provider hangs up after the order, so nobody knows whether it was charged."""

    @fiber
    async def buy(self, f: Fiber, item: str) -> str:
        receipt = await f.op("charge", self.charge, item, effect="once", key="charge")
        return f"{item}: {receipt}"

    async def charge(self, item: str) -> str:
        raise TimeoutError("the provider hung up")

    @fiber
    async def watch(self, f: Fiber) -> None:
        await f.stash({"seen": 3})
        await asyncio.Event().wait()

    async def remind(self, text: str) -> None:
        await self.set_state({"reminded": text})

    async def remember(self, text: str) -> str:
        return (await self.schedule(Every(3600), self.remind, text, key="hourly")).id


@dataclass(frozen=True)
class World:
    """A running host in this process, and the file that others may look into."""

    rt: Runtime
    path: Path

    def shop(self, key: str = "ada") -> Session[Shop]:
        return self.rt.session(Shop, key)

    async def doubtful(self, key: str = "ada") -> str:
        """A fiber that waits because its op is in doubt; returns the fiber's id."""
        return await self.doubtful_in(self.shop(key))

    @staticmethod
    async def doubtful_in(shop: Session[Shop]) -> str:
        running = await shop.start(Shop.buy, "book")
        with pytest.raises(Interrupted):
            await running
        return await running.started()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    path = tmp_path / "shop.db"
    async with Runtime(f"sqlite:///{path}", agents=[Shop]) as rt:
        yield World(rt, path)


@pytest.fixture
async def left(tmp_path: Path) -> World:
    """A store without a host: a doubt, a fiber in mid-work and an alarm were left in it."""
    path = tmp_path / "shop.db"
    async with Runtime(f"sqlite:///{path}", agents=[Shop]) as rt:
        world = World(rt, path)
        await world.doubtful()
        await world.shop().start(Shop.watch)
        await world.shop().call(Shop.remember, "stretch")
    return world
