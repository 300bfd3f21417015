"""A research agent that may be killed at any moment: eight lookups, one published line, one reminder.

    python examples/research.py FOLDER

Start it, end it with `kill -9`, start it again with the same folder: it goes on where it was.
`examples/demo.py` does that to it three times and checks that nothing was lost or done twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure import Agent, DidNotHappen, Fiber, Happened, Runtime, current_fiber, fiber

TOPIC = "tides"
STEPS = (
    "frame the question",
    "search the archive",
    "read the papers",
    "compare the sources",
    "ask an expert",
    "check the numbers",
    "write the draft",
    "review the draft",
)
STEP_TAKES = 0.4
REMIND_AFTER = 3.5
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")


class Research(Agent):
    @fiber
    async def investigate(self, f: Fiber, topic: str) -> dict[str, Any]:
        witness("entered", attempt=f.attempt)
        due_at = await self.do(f, "set a reminder", self.set_reminder, topic, effect="keyed")
        witness("reminder set", due_at=due_at)
        findings: list[str] = []
        for number, name in enumerate(STEPS, start=1):
            findings.append(await self.do(f, name, look_up, topic, number, effect="read"))
            witness("recorded", step=number)
        report = f"report on {topic}: {len(findings)} findings"
        await self.do(f, "publish", publish, report, effect="once", key="publish", verify=was_published)
        return {"report": report, "findings": findings}

    async def set_reminder(self, topic: str) -> int:
        alarm = await self.schedule(REMIND_AFTER, self.remind, topic, key="reminder")
        return alarm.due_at

    async def remind(self, topic: str) -> None:
        """The alarm's callback. It runs in a fiber of its own, so it may have ops too."""
        witness("alarm fired")
        line = f"reminder about {topic}"
        await self.do(
            current_fiber(), "remind", publish, line, effect="once", key="remind", verify=was_published
        )

    async def do(
        self, f: Fiber, kind: str, call: Callable[..., Awaitable[Any]], *args: Any, **how: Any
    ) -> Any:
        return await f.op(kind, call, *args, **how)


class Forgetful(Research):
    """The same without the ledger, to show what the demo would say then."""

    async def do(
        self, f: Fiber, kind: str, call: Callable[..., Awaitable[Any]], *args: Any, **how: Any
    ) -> Any:
        return await call(*args)


# --- the world outside: nothing below knows of perdure


async def look_up(topic: str, number: int) -> str:
    witness("begun", step=number)
    await asyncio.sleep(STEP_TAKES)
    return f"finding {number} on {topic}"


async def publish(line: str) -> None:
    """Cannot be taken back, and answers late: a crash in between leaves its caller in the dark."""
    append(FOLDER / "published.txt", line)
    witness("published", line=line)
    await asyncio.sleep(STEP_TAKES)


async def was_published(line: str) -> Happened | DidNotHappen:
    path = FOLDER / "published.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    witness("looked", found=line in lines)
    return Happened() if line in lines else DidNotHappen()


def witness(what: str, **more: Any) -> None:
    """What an onlooker saw, in a file that the runtime does not use."""
    append(FOLDER / "witness.jsonl", json.dumps({"pid": os.getpid(), "what": what, **more}))


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


async def main(agent: type[Research]) -> None:
    async with Runtime(f"sqlite:///{FOLDER / 'research.db'}", agents=[agent]) as rt:
        session = rt.session(agent, "demo")
        running = await session.start_once("investigation", agent.investigate, TOPIC)
        result = await running
        while await session.alarms() or await session.fibers():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        (FOLDER / "result.json").write_text(json.dumps(result), encoding="utf-8")
        print(result["report"])


if __name__ == "__main__":
    asyncio.run(main(Forgetful if "--forgetful" in sys.argv else Research))
