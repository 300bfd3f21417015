"""What every runner process shares.

Standard library only: peers import this from environments of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT = ("a recorded result " * 12)[:200]
HOLD_SECONDS = 90.0
"""How long a unit in flight waits for its SIGKILL before it gives up."""

READ_BACK = ("PRAGMA journal_mode", "PRAGMA synchronous", "SELECT sqlite_version()")

Results = dict[str, Any]


@dataclass(frozen=True)
class Params:
    """One load. Every loop is bounded by `seconds` and by `count`."""

    store: Path
    """An empty directory on a real disk, or the one the killed process left."""
    seconds: float = 1.5
    count: int = 60_000
    sessions: int = 100
    at_once: int = 64
    effect: str = "read"
    units: int = 200
    recorded: int = 5
    resume: bool = False
    few: int = 100
    many: int = 100_000
    idle: int = 10_000
    stored: int = 1_000_000

    @classmethod
    def from_json(cls, text: str) -> Params:
        given: dict[str, Any] = json.loads(text)
        return cls(Path(given.pop("store")), **given)

    def to_json(self) -> str:
        return json.dumps({**vars(self), "store": str(self.store)})

    def ends(self) -> float:
        """When a window that opens now closes."""
        return time.perf_counter() + self.seconds


def ticks(ends: float, count: int) -> Iterator[int]:
    """Count up from 0 until the window closes or the count is used up."""
    for n in range(count):
        if time.perf_counter() >= ends:
            return
        yield n


def rate(work: Callable[[], int]) -> Results:
    """How much `work` says it did: per second, and CPU of all threads and children per piece."""
    cpu, began = _cpu_seconds(), time.perf_counter()
    done = work()
    elapsed, used = time.perf_counter() - began, _cpu_seconds() - cpu
    return {"per_s": done / elapsed, "cpu_us": used / max(done, 1) * 1e6, "done": done}


def _cpu_seconds() -> float:
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in usages)


def p50_us(seconds: Iterable[float]) -> float:
    import statistics  # takes 10 ms to import, which nobody's recovery should have to pay for

    return statistics.median(seconds) * 1e6


def each_timed(run: Callable[[int], object], ends: float, count: int) -> list[float]:
    """Run one after the other until the window closes; the seconds each one took."""
    taken: list[float] = []
    for n in ticks(ends, count):
        began = time.perf_counter()
        run(n)
        taken.append(time.perf_counter() - began)
    return taken


async def each_awaited(run: Callable[[int], Awaitable[object]], ends: float, count: int) -> list[float]:
    """As `each_timed`, for what is awaited."""
    taken: list[float] = []
    for n in ticks(ends, count):
        began = time.perf_counter()
        await run(n)
        taken.append(time.perf_counter() - began)
    return taken


def in_threads(count: int, work: Callable[[int], int]) -> int:
    """The sum of `work(0)` to `work(count - 1)`, each in a thread of its own."""
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(work, range(count)))


class Executions:
    """The outside world of the recovery scenario: a line per step that was really executed."""

    def __init__(self, store: Path) -> None:
        self._log = os.open(executions_log(store), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, unit: int, step: int) -> None:
        os.write(self._log, b"%d:%d\n" % (unit, step))


def executions_log(store: Path) -> Path:
    return store / "executed.log"


def entered(unit: int) -> None:
    """Tell the bench that `unit` stands behind its recorded steps, and is in flight."""
    os.write(1, b"entered %d\n" % unit)


def sqlite_settings(journal_mode: str, synchronous: int, version: str) -> Results:
    """The durability in force, from what `READ_BACK` answered on the connection that is used."""
    words = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    return {"journal_mode": journal_mode, "synchronous": words[int(synchronous)], "sqlite": version}


def main(scenarios: Mapping[str, Callable[[Params], Results]]) -> None:
    """Run one scenario of this runner; its results are one JSON line on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=sorted(scenarios))
    parser.add_argument("--json", required=True, type=Params.from_json, metavar="PARAMS")
    arguments = parser.parse_args()
    results = scenarios[arguments.scenario](arguments.json)
    os.write(1, json.dumps(results).encode() + b"\n")
    # Peers leave threads behind that would delay a polite exit.
    os._exit(0)
