"""The fenced blocks of the documentation, and how to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if path.name != "CONTRIBUTING.md"
)
FENCE = re.compile(r"^```(\w*)\s*$")
NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
RUNNABLE = ("python", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block. `expected` is the `text` block that follows it: what it prints.

    A `python` block that starts with `# name.py` is saved under that name; if a `sh` block follows
    it directly, that one runs it.
    """

    page: str
    line: int
    language: str
    code: str
    not_run: str | None
    expected: str | None = None
    only_saved: bool = False

    @property
    def file(self) -> str:
        named = re.match(r"# (\w+\.py)\n", self.code)
        return named[1] if named else f"block_{self.line}.py"

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The `python` and `sh` blocks of a page, in order."""
    found = _fenced(page)
    runnable: list[Block] = []
    for one, following in pairwise([*found, None]):
        if one is None or one.language not in RUNNABLE:
            continue
        after = following.language if following is not None else ""
        expected = following.code if following is not None and after == "text" else None
        only_saved = one.language == "python" and one.code.startswith(f"# {one.file}") and after == "sh"
        runnable.append(replace(one, expected=expected, only_saved=only_saved))
    return runnable


def _fenced(page: str) -> list[Block]:
    found: list[Block] = []
    lines = iter(enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), start=1))
    before = ""
    for number, line in lines:
        if fence := FENCE.match(line):
            inside: list[str] = []
            for _, code in lines:
                if code == "```":
                    break
                inside.append(code)
            marker = NOT_RUN.match(before)
            code = "\n".join(inside) + "\n"
            found.append(Block(page, number, fence[1], code, marker[1] if marker else None))
        if line.strip():
            before = line
    return found


def run(block: Block, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a block in `folder` and return what it printed. Fails if the block does."""
    if block.language == "python":
        (folder / block.file).write_text(block.code, encoding="utf-8")
    if block.only_saved:
        return ""
    done = subprocess.run(
        _command(block),
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"{block.name} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _command(block: Block) -> list[str]:
    if block.language == "sh":
        return ["bash", "-euo", "pipefail", "-c", block.code]
    if "def test_" in block.code:
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", block.file]
    return [sys.executable, "-W", "error", block.file]


def same_output(printed: str, expected: str) -> bool:
    """Whether the output is the one shown; `…` stands for anything on its line."""
    pattern = re.escape(expected.rstrip()).replace("…", ".*")
    return re.fullmatch(pattern, re.sub(r"[ \t]+$", "", printed.rstrip(), flags=re.M)) is not None
