"""The outside world of a crash test: what an agent did to it, and a client that asks for more."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure import Agent, Interrupted, Runtime, Session


class World:
    """Counts effects. What a dead life does is not counted: it does not happen."""

    agents: Sequence[type[Agent]] = ()

    def __init__(self) -> None:
        self.alive = True
        self.effects: Counter[str] = Counter()
        self.doubted: list[str] = []
        self.result: Any = None
        self.client: Callable[[Runtime], Awaitable[Any]] | None = None

    async def drive(self, rt: Runtime) -> None:
        assert self.client is not None
        self.result = await self.client(rt)

    def effect(self, name: str) -> str:
        """Something irreversible."""
        if self.alive:
            self.effects[name] += 1
        return name

    async def settled(self, session: Session[Any], running: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for a fiber, and settle each doubt truthfully, as a person would who looks."""
        for _ in range(20):
            try:
                return await running()
            except Interrupted:
                for op in await session.doubts():
                    self.doubted.append(op.id)
                    happened = self.effects[op.kind] > 0
                    await session.resolve(op.id, happened=happened, result=op.kind if happened else None)
        raise AssertionError("there is always one more doubt")
