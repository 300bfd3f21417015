"""Who listens to a session. Listeners outlive its eviction; what they hear is not stored."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Message:
    """What a subscriber hears: a new state (with its version), a broadcast, or that it was too
    slow and `body` messages were dropped."""

    kind: Literal["state", "broadcast", "missed"]
    body: Any
    version: int | None = None


class Subscription:
    """An asynchronous iterator of messages. A slow one loses messages and is told how many."""

    __slots__ = ("_messages", "_missed")

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue(MOST_WAITING)
        self._missed = 0

    def put(self, message: Message) -> None:
        if self._messages.full():
            self._missed += 1
        else:
            self._messages.put_nowait(message)

    async def next(self) -> Message:
        if self._missed and self._messages.empty():
            missed, self._missed = self._missed, 0
            return Message("missed", missed)
        return await self._messages.get()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        return await self.next()


class Topics:
    def __init__(self) -> None:
        self._listening: defaultdict[str, set[Subscription]] = defaultdict(set)

    @contextmanager
    def subscribe(self, session: str) -> Generator[Subscription]:
        mine = Subscription()
        self._listening[session].add(mine)
        try:
            yield mine
        finally:
            self._listening[session].discard(mine)
            if not self._listening[session]:
                del self._listening[session]

    def publish(self, session: str, message: Message) -> None:
        for one in self._listening.get(session, ()):
            one.put(message)
