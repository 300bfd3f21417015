"""A process that looks at a SQLite file beside its host, or after the host was killed."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from perdure import Status
from perdure.core.status import status
from perdure.engine.session import facts_of
from perdure.stores import open_store

HOST = """
import asyncio, sys
from perdure import Agent, Fiber, Runtime, fiber

class Sleeper(Agent):
    @fiber
    async def sleep(self, f: Fiber) -> None:
        await asyncio.sleep(3600)

async def main() -> None:
    async with Runtime(f"sqlite:///{sys.argv[1]}", agents=[Sleeper]) as rt:
        await rt.session(Sleeper, "one").start(Sleeper.sleep)
        print("started", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_the_status_tells_at_once_that_the_host_was_killed(tmp_path: Path) -> None:
    file = tmp_path / "agents.db"
    host = subprocess.Popen([sys.executable, "-c", HOST, str(file)], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        assert await asyncio.to_thread(host.stdout.readline) == "started\n"
        store = open_store(f"sqlite:///{file}", host=False)
        (session,) = await store.sessions()

        async def said() -> Status:
            facts = await facts_of(store, session.id)
            assert facts is not None
            return status(facts)

        assert await said() == Status.RUNNING
        os.kill(host.pid, signal.SIGKILL)
        host.wait()
        assert await said() == Status.RESCHEDULING
        await store.close()
    finally:
        host.kill()
        host.wait()
        host.stdout.close()
