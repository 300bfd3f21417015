"""The parent's side of a host process: start it, ask it, kill it, and see what it leaves."""

from __future__ import annotations

import json
import resource
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

from perdure.core.facts import EndedRow, FiberRow, InputRow, OpRow, SessionRow
from perdure.ports import Store
from perdure.stores import open_store

from .world import World, wait_until

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0

HASTY: dict[str, Any] = {"patience": {"spacing": []}, "tryout": 0.02}
"""Settings: attempts are not spaced."""

BRIEF: dict[str, Any] = {**HASTY, "lease_lives": 0.3, "hold": 0.3}
"""Settings of a host that is alone on its database: whoever comes after its death need not wait."""


class Refused(Exception):
    """The host answered with an error."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error = error
        self.message = message


class Died(Exception):
    """The host process ended before it answered."""


class HostProcess:
    """One life of a host."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.processes.child", json.dumps(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[dict[str, Any]] = []
        self.log: list[str] = []
        self._asked = 0
        self._news = threading.Condition()
        self._listening = [
            self._listen(self.process.stdout, lambda line: self.said.append(json.loads(line))),
            self._listen(self.process.stderr, lambda line: self.log.append(line.rstrip("\n"))),
        ]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    # --- asking

    def ask(self, do: str, *, seconds: float = PATIENCE, **more: Any) -> Any:
        """What the host answers. `Refused` if that is an error, `Died` if it is no more."""
        return self.answer(self.send(do, **more), seconds)

    def insist(self, do: str, **more: Any) -> Any:
        """As `ask`, but again and again while another host owns the session."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.ask(do, **more)
            except Refused as refused:
                if refused.error != "OwnedElsewhere" or time.monotonic() > until:
                    raise

    def send(self, do: str, **more: Any) -> int:
        """Ask without waiting for the answer."""
        self._asked += 1
        line = json.dumps({"number": self._asked, "do": do, **more})
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Died(f"process {self.pid}") from None
        return self._asked

    def answer(self, number: int, seconds: float = PATIENCE) -> Any:
        said = self.wait_for(lambda one: one.get("number") == number, seconds)
        if "error" in said:
            raise Refused(said["error"], said["message"])
        return said["value"]

    def ready(self, seconds: float = PATIENCE) -> HostProcess:
        """Wait until it is a host."""
        said = self.wait_for(lambda one: "ready" in one or "failed" in one, seconds)
        if "failed" in said:
            raise Refused(said["failed"], said["message"])
        return self

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = PATIENCE) -> dict[str, Any]:
        """The first such line that it said."""
        until = time.monotonic() + seconds
        at = 0
        with self._news:
            while True:
                for one in self.said[at:]:
                    if wanted(one):
                        return one
                at = len(self.said)
                if not self._listening[0].is_alive():
                    raise Died(f"process {self.pid}: {self.shown()}")
                if not self._news.wait(until - time.monotonic()):
                    raise AssertionError(f"process {self.pid} says nothing: {self.shown()}")

    def wait_for_log(self, text: str, seconds: float = PATIENCE) -> str:
        """The first line of its log with this text."""

        def look() -> str | None:
            return next(iter(self.logged(text)), None)

        found = wait_until(f"{text!r} in the log of process {self.pid}", look, seconds)
        assert found is not None
        return found

    def logged(self, text: str) -> list[str]:
        return [line for line in list(self.log) if text in line]

    def shown(self) -> str:
        return f"it said {self.said[-5:]}, its log ends with\n" + "\n".join(self.log[-40:])

    # --- signals

    def kill(self) -> None:
        """SIGKILL; when this returns the process is gone and everything it said has been read."""
        self.process.kill()
        self.wait()

    def stop(self) -> None:
        """SIGSTOP; when this returns no thread of it runs any more."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(f"process {self.pid} is stopped", self.is_stopped)

    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] in "Tt"

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Wait for its end. Returns the exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} does not end: {self.shown()}") from None
        for thread in self._listening:
            thread.join(PATIENCE)
        return status

    def limit_files(self, size: int) -> None:
        """Let the process write no file beyond this size; -1 lifts the limit."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))

    def close(self) -> None:
        """Whatever state it is in: nothing is left of it."""
        if not self.ended:
            self.process.kill()
            self.go_on()
        self.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _listen(self, pipe: IO[bytes] | None, hear: Callable[[str], None]) -> threading.Thread:
        assert pipe is not None

        def read() -> None:
            for line in pipe:
                with self._news:
                    hear(line.decode(errors="replace"))
                    self._news.notify_all()
            with self._news:
                self._news.notify_all()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread


class Stage:
    """One store, the hosts that run on it one after the other or beside each other, and the world."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.world = World(folder)
        self.hosts: list[HostProcess] = []
        self._settings: dict[str, Any] = BRIEF if self.shared else HASTY

    @property
    def shared(self) -> bool:
        """Whether several hosts may use the store at once."""
        return self.url.startswith("postgres")

    def start(self, **options: Any) -> HostProcess:
        """Start a host; it may not be ready yet."""
        settings = {**self._settings, **options.pop("settings", {})}
        given = {"url": self.url, "folder": str(self.folder), "settings": settings, **options}
        host = HostProcess(given)
        self.hosts.append(host)
        return host

    def host(self, **options: Any) -> HostProcess:
        """Start a host and wait until it is one."""
        return self.start(**options).ready()

    @property
    def kills(self) -> int:
        """How many hosts were ended by SIGKILL."""
        return sum(one.process.returncode == -signal.SIGKILL for one in self.hosts)

    def forget_dead(self) -> None:
        """Free the pipes of hosts that have ended; they still count."""
        for one in self.hosts:
            if one.ended:
                one.close()

    def close(self) -> None:
        for one in self.hosts:
            one.close()

    # --- looking

    @asynccontextmanager
    async def look(self) -> AsyncIterator[Look]:
        store = open_store(self.url, host=False)
        try:
            yield Look(store)
        finally:
            await store.close()


class Look:
    """What is in the store, seen from beside its hosts."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def sessions(self) -> list[SessionRow]:
        return await self.store.sessions(limit=10_000)

    async def fibers(self) -> list[FiberRow]:
        return [row for one in await self.sessions() for row in await self.store.fibers(one.id)]

    async def open_ops(self) -> list[OpRow]:
        return [row for one in await self.sessions() for row in await self.store.open_ops(one.id)]

    async def doubts(self) -> list[OpRow]:
        return [row for row in await self.open_ops() if row.outcome == "doubt"]

    async def fiber(self, fiber: str) -> FiberRow:
        found = await self.store.fiber(fiber)
        assert found is not None, f"fiber {fiber} is not open"
        return found

    async def ended(self, fiber: str, seconds: float = PATIENCE) -> EndedRow:
        """What became of the fiber, as soon as it has ended."""
        until = time.monotonic() + seconds
        while (found := await self.store.ended_fiber(fiber)) is None:
            assert time.monotonic() < until, f"fiber {fiber} does not end: {await self.store.fiber(fiber)}"
            time.sleep(0.01)
        return found

    async def until(self, what: str, look: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """What an awaited `look` finds, as soon as it is true."""
        until = time.monotonic() + seconds
        while not (found := await look()):
            assert time.monotonic() < until, f"{what}: not within {seconds:g} s"
            time.sleep(0.01)
        return found

    async def put(self, session: str, kind: str, **body: Any) -> None:
        """Put an input into the inbox, as a person beside the host does."""
        row = InputRow(
            "i" + secrets.token_hex(12), session, kind, json.dumps(body).encode(), self.store.now()
        )
        assert await self.store.put_input(row)

    async def everything(self) -> list[Any]:
        """All that the store knows of its sessions, to be compared."""
        found: list[Any] = []
        for one in await self.sessions():
            found += [one, await self.store.fibers(one.id), await self.store.ended(one.id)]
            found += [await self.store.ops(one.id), await self.store.events(one.id)]
            found += [await self.store.alarms(one.id), await self.store.inputs(one.id)]
        return found

    async def check_logs(self) -> None:
        """One contiguous `seq` per session (P8)."""
        for one in await self.sessions():
            seqs = [row.seq for row in await self.store.events(one.id, limit=100_000)]
            assert seqs == list(range(1, one.seq + 1))
