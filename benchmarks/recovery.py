"""200 units in flight, SIGKILL, restart: how long until every one is in flight again."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Params, Results, executions_log
from benchmarks.runners import failure, started


def recover(python: Path, module: str, params: Params) -> Results:
    """Seconds from the start of the second process, and recorded steps executed more than once."""
    _until_all_entered(python, module, params)
    seconds = _until_all_entered(python, module, replace(params, resume=True))
    executed = executions_log(params.store).read_text().split()
    return {
        "seconds": seconds,
        "duplicates": len(executed) - len(set(executed)),
        "never_executed": params.units * params.recorded - len(set(executed)),
    }


def _until_all_entered(python: Path, module: str, params: Params) -> float:
    """Start the process, wait until every unit has entered, SIGKILL it."""
    began = time.perf_counter()
    with started(python, module, "recovery", params, seconds=60) as process:
        waiting = _wait_for_units(process, params.units)
        taken = time.perf_counter() - began
    if waiting:
        raise failure(process.returncode, params)
    return taken


def _wait_for_units(process: subprocess.Popen[str], units: int) -> int:
    """Read until each unit has reported once; how many have not when the process ends first."""
    assert process.stdout is not None
    waiting = {f"entered {unit}" for unit in range(units)}
    for line in process.stdout:
        waiting.discard(line.strip())
        if not waiting:
            break
    return len(waiting)
