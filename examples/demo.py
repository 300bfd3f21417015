"""Starts a research agent in a process of its own, kills that three times with SIGKILL in the middle of
a step, starts it again, and checks the outcome: no step lost, no side effect doubled.

    make demo

Needs no key and no server, and takes less than ten seconds. The exit code is 0 only if all is right.
With --sabotage the agent works without its ledger, and the same check must find what went wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from research import STEPS
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from perdure.stores import open_store

AGENT = Path(__file__).with_name("research.py")
PUBLISHED = ("report on tides: 8 findings", "reminder about tides")
SLOWEST_RECOVERY = 5.0
PATIENCE = 20.0
LOOK_EVERY = 0.005


# --- the verdict: a pure function of what was seen


@dataclass(frozen=True)
class Evidence:
    """What onlookers saw, what is in the world, and what the store says in the end."""

    witnessed: list[dict[str, Any]]
    published: list[str]
    findings: list[str]
    killed_during: list[str]
    recoveries: list[float]
    open_fibers: int = 0
    doubts: int = 0
    alarms: int = 0


@dataclass(frozen=True)
class Finding:
    right: bool
    what: str
    found: str


def verdict(seen: Evidence) -> list[Finding]:
    lost = steps_lost(seen)
    copies = Counter(seen.published)
    doubled = sum(number - 1 for number in copies.values())
    missing = [line for line in PUBLISHED if line not in copies]
    slowest = max(seen.recoveries, default=float("inf"))
    left = seen.open_fibers + seen.doubts + seen.alarms
    return [
        Finding(len(seen.killed_during) >= 2, "kills", ", ".join(seen.killed_during) or "none"),
        Finding(not lost, "steps lost", f"{len(lost)} of {len(STEPS)}{_named(lost)}"),
        Finding(doubled == 0, "side effects doubled", f"{doubled} of {len(PUBLISHED)}"),
        Finding(not missing, "side effects missing", f"{len(missing)} of {len(PUBLISHED)}{_named(missing)}"),
        Finding(left == 0, "left over", f"{left} (open fibers, doubts, alarms)"),
        Finding(
            len(seen.recoveries) == len(seen.killed_during) and slowest < SLOWEST_RECOVERY,
            "time to recovery",
            ", ".join(f"{one:.2f} s" for one in seen.recoveries) + " (process start to work)",
        ),
    ]


def steps_lost(seen: Evidence) -> list[str]:
    """Steps that are missing in the result, or were recorded and had to be done again."""
    recorded: set[int] = set()
    again: set[int] = set()
    for one in seen.witnessed:
        if one["what"] == "recorded":
            recorded.add(one["step"])
        elif one["what"] == "begun" and one["step"] in recorded:
            again.add(one["step"])
    missing = {n for n in range(1, len(STEPS) + 1) if f"finding {n} on tides" not in seen.findings}
    return [f"step {n}" for n in sorted(again | missing)]


def _named(names: list[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


# --- the show


@dataclass
class Show:
    """Runs the agent in a folder, watches its witness file, and kills it."""

    folder: Path
    sabotage: bool
    console: Console
    bar: Progress
    began: float = field(default_factory=time.monotonic)
    started: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    witnessed: list[dict[str, Any]] = field(default_factory=list)
    killed_during: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)

    def play(self) -> Evidence:
        self.bar.add_task("research", total=len(STEPS))
        self.start()
        self.kill_when("begun", step=3)
        self.start()
        self.kill_when("begun", step=6)
        self.let_the_alarm_become_due()
        self.start()
        self.kill_when("published", line=PUBLISHED[0])
        self.start()
        self.wait_for_the_end()
        return asyncio.run(self.evidence())

    def start(self) -> None:
        command = [sys.executable, str(AGENT), str(self.folder), *(["--forgetful"] if self.sabotage else [])]
        self.started = time.monotonic()
        with (self.folder / "stderr.txt").open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        self.say(f"process {self.process.pid} starts", "cyan")

    def kill_when(self, what: str, **where: Any) -> None:
        assert self.process is not None
        wanted = {"what": what, "pid": self.process.pid, **where}
        seen = next((one for one in self.watch() if wanted.items() <= one.items()), None)
        if seen is None:
            raise Stopped(f"process {self.process.pid} ended by itself ({self.process.returncode})")
        during = f"step {seen['step']}" if "step" in seen else "publishing"
        self.end()
        self.killed_during.append(during)
        self.say(f"SIGKILL to process {self.process.pid}, in the middle of {during}", "bold red")

    def let_the_alarm_become_due(self) -> None:
        due_at = next(one["due_at"] for one in self.witnessed if one["what"] == "reminder set")
        if all(one["what"] != "alarm fired" for one in self.witnessed):
            self.say("the alarm becomes due while nobody is there to fire it", "yellow")
            time.sleep(max(0.0, due_at / 1000 - time.time()))

    def wait_for_the_end(self) -> None:
        assert self.process is not None
        for _ in self.watch():
            pass
        if self.process.returncode != 0:
            raise Stopped(f"process {self.process.pid} ended with {self.process.returncode}")
        self.say(f"process {self.process.pid} has finished the work", "cyan")

    def watch(self) -> Iterator[dict[str, Any]]:
        """What the witness writes, told as it comes in, until the process ends."""
        assert self.process is not None
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ended = self.process.poll() is not None
            for one in self.read_witness():
                self.tell(one)
                self.witnessed.append(one)
                yield one
            if ended:
                return
            time.sleep(LOOK_EVERY)
        raise Stopped(f"process {self.process.pid} was not done within {PATIENCE:g} s")

    def read_witness(self) -> list[dict[str, Any]]:
        path = self.folder / "witness.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines[len(self.witnessed) :]]

    def tell(self, one: dict[str, Any]) -> None:
        if one["what"] == "recorded" and one["step"] in self.recorded() and not self.sabotage:
            self.replayed.append(one["step"])
            return
        if self.replayed:
            self.say(f"steps 1 to {self.replayed[-1]}: their results are in the ledger", "dim")
            self.replayed.clear()
        match one["what"]:
            case "entered" if one["attempt"]:
                self.recoveries.append(time.monotonic() - self.started)
                self.say(f"the work goes on after {self.recoveries[-1]:.2f} s", "cyan")
            case "begun":
                again = ", again!" if one["step"] in self.recorded() else ""
                self.say(f"step {one['step']}: {STEPS[one['step'] - 1]}{again}")
            case "recorded":
                self.bar.update(self.bar.task_ids[0], completed=len(self.recorded()) + 1)
            case "published":
                self.say(f"published: {one['line']}", "green")
            case "looked":
                self.say(f"published before? {'yes' if one['found'] else 'no'}", "dim")
            case "alarm fired":
                self.say("the alarm fires", "yellow")
            case _:
                pass

    def recorded(self) -> set[int]:
        return {one["step"] for one in self.witnessed if one["what"] == "recorded"}

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(Text(f"{time.monotonic() - self.began:6.2f} s  {text}", style))

    async def evidence(self) -> Evidence:
        store = open_store(f"sqlite:///{self.folder / 'research.db'}", host=False)
        try:
            (session,) = await store.sessions()
            return Evidence(
                witnessed=self.witnessed,
                published=(self.folder / "published.txt").read_text(encoding="utf-8").splitlines(),
                findings=json.loads((self.folder / "result.json").read_text(encoding="utf-8"))["findings"],
                killed_during=self.killed_during,
                recoveries=self.recoveries,
                open_fibers=len(await store.fibers(session.id)),
                doubts=len(await store.open_ops(session.id)),
                alarms=len(await store.alarms(session.id)),
            )
        finally:
            await store.close()


class Stopped(Exception):
    """The show cannot go on."""


@contextmanager
def stage(sabotage: bool) -> Iterator[Show]:
    """A temporary folder and a place to print; the process is gone afterwards."""
    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("          research"), BarColumn(40), TextColumn("{task.completed:.0f} of 8 steps"))
    with (
        tempfile.TemporaryDirectory(prefix="perdure-demo-") as folder,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        show = Show(Path(folder), sabotage, console, bar)
        try:
            yield show
        except Stopped as stopped:
            console.print(f"the show cannot go on: {stopped}", style="bold red")
            console.print((show.folder / "stderr.txt").read_text(encoding="utf-8"))
            raise
        finally:
            show.end()


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill an agent in mid-work, and see that nothing is lost.")
    parser.add_argument(
        "--sabotage", action="store_true", help="work without the ledger: the check must fail"
    )
    try:
        with stage(parser.parse_args().sabotage) as show:
            findings = verdict(show.play())
    except Stopped:
        return 1
    console = show.console
    console.print()
    for one in findings:
        console.print(f"  {one.what:22}{one.found}", style="" if one.right else "bold red")
    right = all(one.right for one in findings)
    console.print(
        "  verdict               " + ("right" if right else "WRONG"), style="green" if right else "bold red"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
