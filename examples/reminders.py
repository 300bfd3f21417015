"""Alarms: once, at an interval, by cron. They are rows, so they outlive the process that set them.

python examples/reminders.py
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from perdure import Agent, Cron, Every, Runtime


class Diary(Agent):
    initial_state = ()

    async def plan(self) -> None:
        await self.schedule(timedelta(milliseconds=150), self.note, "the tea is ready", key="tea")
        await self.schedule(Every(0.1), self.note, "a tenth of a second", key="beat")
        await self.schedule(Cron("0 9 * * mon-fri", "Europe/Berlin"), self.note, "stand-up", key="standup")

    async def note(self, text: str) -> None:
        await self.set_state([*self.state, text])


async def main(store: str) -> None:
    async with Runtime(store, agents=[Diary]) as rt:
        diary = rt.session(Diary, "ada")
        with diary.subscribe() as heard:
            await diary.call(Diary.plan)
            for alarm in await diary.alarms():
                print(f"set: {alarm.key}")
            async for message in heard:
                if message.kind == "state" and "the tea is ready" in message.body:
                    break
        print(f"noted: {', '.join(sorted(set(await diary.state())))}")
        for alarm in await diary.alarms():
            print(f"goes on: {alarm.key}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///:memory:"))
