"""The README starts with a program that is pasted, run, killed and run again."""

from __future__ import annotations

import ast
import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.docs.pages import ROOT, blocks

LONGEST = 25
PROGRAM = blocks("README.md")[0]
NOTEBOOK = next(one for one in blocks("README.md") if one.code.startswith("# In a notebook"))


def read_until(lines: IO[str], start: str) -> list[str]:
    """The lines up to the first that starts so."""
    seen: list[str] = []
    for line in lines:
        seen.append(line.strip())
        if line.startswith(start):
            break
    return seen


def test_the_first_program_is_short_and_near_the_top() -> None:
    assert PROGRAM.language == "python"
    assert PROGRAM.line < 20
    assert len(PROGRAM.code.splitlines()) <= LONGEST


def test_the_first_program_goes_on_after_kill_9(tmp_path: Path) -> None:
    file = tmp_path / "research.py"
    file.write_text(PROGRAM.code, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(file)]

    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        seen = read_until(first.stdout, "step 4")
        first.send_signal(signal.SIGKILL)
    assert [line.split(":")[0] for line in seen] == ["step 1", "step 2", "step 3", "step 4"]

    def again() -> list[str]:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    *steps, result = again()
    assert [line.split(":")[0] for line in steps] == [f"step {n}" for n in range(4, 9)]
    assert again() == [result]


async def test_the_notebook_example_runs_where_a_loop_runs_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook does it: a cell with top-level `await`, within a loop that goes on afterwards."""
    monkeypatch.chdir(tmp_path)
    cell = compile(NOTEBOOK.code, NOTEBOOK.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, object] = {}
    running = eval(cell, names)
    if running is not None:
        await asyncio.wait_for(running, 30)
    assert names["answer"] == 42


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
