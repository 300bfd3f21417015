"""A connection that breaks where a test says so, around a real one; and processes that start together."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.core.errors import StoreUnavailable
from perdure.stores.group import Connection, ConnectionLost, Row

Fault = Literal["lost", "applied, then lost", "unavailable", None]


@dataclass
class Flaky:
    """Each list is used up from the left, one entry per call; what is not listed works."""

    real: Connection
    begins: deque[Fault] = field(default_factory=deque[Fault])
    commits: deque[Fault] = field(default_factory=deque[Fault])
    reopens: deque[Fault] = field(default_factory=deque[Fault])
    queries: dict[str, deque[Fault]] = field(default_factory=dict[str, deque[Fault]])
    flushed: int = 0
    before_commit: Callable[[], None] | None = None

    def run(self, query: str, params: Any) -> list[Row]:
        return self._call(self.queries.get(query, deque()), lambda: self.real.run(query, params))

    def begin(self) -> None:
        self._call(self.begins, self.real.begin)

    def commit(self) -> None:
        if self.before_commit is not None:
            self.before_commit()
        self._call(self.commits, self.real.commit)
        self.flushed += 1

    def rollback(self) -> None:
        self.real.rollback()

    def reopen(self) -> None:
        self._call(self.reopens, self.real.reopen)

    def _call(self, faults: deque[Fault], work: Callable[[], Any]) -> Any:
        match faults.popleft() if faults else None:
            case None:
                return work()
            case "lost":
                self.real.rollback()
                raise ConnectionLost("as the test wished, before it was applied")
            case "applied, then lost":
                work()
                raise ConnectionLost("as the test wished, after it was applied")
            case "unavailable":
                raise StoreUnavailable("(as the test wished)")


def all_at_once(script: str, arguments: list[list[str]]) -> list[int]:
    """Run the script in one process per list of arguments, and return their exit codes.

    Each says "ready" when it could begin, and begins when all have said so.
    """
    command = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    started = [subprocess.Popen([*command, *some], **pipes) for some in arguments]  # type: ignore[call-overload]
    try:
        for one in started:
            assert one.stdout.readline() == "ready\n"
        for one in started:
            one.stdin.write("go\n")
            one.stdin.flush()
        return [one.wait(60) for one in started]
    finally:
        for one in started:
            one.kill()
            one.communicate()
