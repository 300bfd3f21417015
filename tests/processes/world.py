"""The world outside of the hosts: what agents did to it, kept in files that the runtime does not use.

A host that is killed leaves here exactly what it had done. `witness.jsonl` is what an onlooker saw, in
order; `effects/` has one file per irreversible effect, with one line each time it happened.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

LOOK_EVERY = 0.004


class Late(AssertionError):
    """What a test waits for did not come."""


def wait_until(what: str, look: Callable[[], T], seconds: float = 30.0) -> T:
    """What `look` finds, as soon as it is true."""
    until = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > until:
            raise Late(f"{what}: not within {seconds:g} s")
        time.sleep(LOOK_EVERY)
    return found


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._effects = folder / "effects"
        self._witness = folder / "witness.jsonl"
        self._read_to = 0
        self._seen: list[dict[str, Any]] = []
        self._effects.mkdir(exist_ok=True)

    # --- what agents do

    def witness(self, what: str, **more: Any) -> None:
        _append(self._witness, json.dumps({"what": what, "pid": os.getpid(), "at": time.time(), **more}))

    def effect(self, name: str, op: str = "") -> str:
        """Something irreversible."""
        _append(self._effects / name, op or "done")
        return name

    def happened(self, name: str) -> bool:
        try:
            return (self._effects / name).stat().st_size > 0
        except FileNotFoundError:
            return False

    def open(self, gate: str) -> None:
        """Let whoever waits at the gate pass."""
        (self.folder / f"{gate}.gate").touch()

    def is_open(self, gate: str) -> bool:
        return (self.folder / f"{gate}.gate").exists()

    # --- what tests see

    def effects(self) -> Counter[str]:
        """How often each effect happened."""
        return Counter({one.name: one.read_text().count("\n") for one in self._effects.iterdir()})

    def seen(self, what: str | None = None, **where: Any) -> list[dict[str, Any]]:
        """What was witnessed so far, in order."""
        self._read()
        wanted = where if what is None else {"what": what, **where}
        return [one for one in self._seen if wanted.items() <= one.items()]

    def wait_for(self, what: str, *, times: int = 1, seconds: float = 30.0, **where: Any) -> dict[str, Any]:
        """The `times`-th such sight, as soon as it was witnessed."""

        def look() -> list[dict[str, Any]]:
            return self.seen(what, **where)[times - 1 :]

        return wait_until(f"{what} {where or ''} {times} times", look, seconds)[0]

    def _read(self) -> None:
        if not self._witness.exists():
            return
        with self._witness.open("rb") as file:
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._read_to += len(whole) + 1
            self._seen += [json.loads(line) for line in whole.split(b"\n")]


def _append(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, line.encode() + b"\n")
    finally:
        os.close(file)
