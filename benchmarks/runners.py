"""Runner processes: where each one's Python comes from, and how one is started, read and ended."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Params, Results

HERE = Path(__file__).parent
INSTALL_SECONDS = 600
RUN_SECONDS = 180


class Absent(Exception):
    """The runner cannot run here."""


class Failed(Exception):
    """The runner ran and gave no result."""


@dataclass(frozen=True)
class Runner:
    name: str
    module: str
    peer: bool = False
    environment: str | None = None
    """Name of its own environment and requirements file; without one it runs in the project's."""
    missing: str | None = None
    """Why it cannot be had, where that is known beforehand."""

    def python(self) -> Path:
        """The interpreter to run it with, after installing what it needs."""
        if self.missing is not None:
            raise Absent(self.missing)
        if self.environment is not None:
            return _environment(self.environment)
        if find_spec(self.module) is None:
            raise Absent(f"no module {self.module}")
        return Path(sys.executable)


RUNNERS: tuple[Runner, ...] = (
    Runner("floor", "benchmarks.floor"),
    Runner("dbos", "benchmarks.peers.dbos", peer=True, environment="dbos"),
    Runner("langgraph", "benchmarks.peers.langgraph", peer=True, environment="langgraph"),
    Runner("langgraph-async", "benchmarks.peers.langgraph_async", peer=True, environment="langgraph"),
    Runner("restate", "", peer=True, missing="no server was found on the package index, only its SDK"),
    Runner("ours", "benchmarks.ours"),
)


def _environment(name: str) -> Path:
    """The Python of `.venvs/<name>`, which holds exactly what `peers/<name>.txt` pins."""
    requirements, home = HERE / "peers" / f"{name}.txt", HERE / ".venvs" / name
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = f"{sys.version} {hashlib.sha256(requirements.read_bytes()).hexdigest()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    _install([sys.executable, "-m", "venv", "--clear", str(home)])
    _install([*pip, "install", "--require-hashes", "--only-binary", ":all:", "-r", str(requirements)])
    stamp.write_text(wanted)
    return python


def _install(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise Absent(f"not installed within {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Absent(errors[0] if errors else _last_line(done.stderr) or f"pip ended with {done.returncode}")


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


@contextmanager
def started(
    python: Path, module: str, scenario: str, params: Params, seconds: float = RUN_SECONDS
) -> Generator[subprocess.Popen[str]]:
    """A runner process; it is gone afterwards, and after `seconds` in any case."""
    command = [str(python), "-m", module, scenario, "--json", params.to_json()]
    with (
        (params.store / "stderr").open("a") as errors,
        subprocess.Popen(
            command,
            cwd=HERE.parent,
            env=_environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.kill()


def _environ() -> dict[str, str]:
    """Ours, without what would change a runner's Python, and with LangGraph's telemetry off."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "LANGSMITH_TRACING": "false"}


def run(python: Path, module: str, scenario: str, params: Params) -> Results:
    """One scenario in a process of its own, from start to end."""
    with started(python, module, scenario, params) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
        process.wait()
    if process.returncode == 0 and lines:
        return json.loads(lines[-1])
    raise failure(process.returncode, params)


def failure(returncode: int | None, params: Params) -> Failed:
    said = _last_line((params.store / "stderr").read_text())
    return Failed(f"{said or 'no result'} (exit {returncode})")
