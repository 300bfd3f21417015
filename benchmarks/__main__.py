"""`python -m benchmarks [SCENARIO ...]`: measure everybody in turn, print ratios and verdicts."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import Params, Results
from benchmarks.recovery import recover
from benchmarks.runners import HERE, RUNNERS, Absent, Failed, Runner, run
from benchmarks.scenarios import QUICK, SCENARIOS, Scenario

ROUNDS = 3


@dataclass
class Bench:
    """Who takes part, and what came out so far."""

    overrides: dict[str, Any]
    rounds: int
    pythons: dict[str, Path] = field(default_factory=dict)
    settings: dict[str, Results] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    measured: dict[str, dict[str, Results]] = field(default_factory=dict)

    def prepare(self, runners: Sequence[Runner]) -> None:
        """Install each runner and read back its durability; who cannot run is absent."""
        for runner in runners:
            say(f"preparing {runner.name}")
            try:
                python = runner.python()
                self.settings[runner.name] = self._run(runner, python, "settings", {})
                self.pythons[runner.name] = python
            except Absent as reason:
                self.absent[runner.name] = str(reason)
            except Failed as reason:
                self.failed.append(f"settings, {runner.name}: {reason}")

    def measure(self, scenario: Scenario) -> None:
        """All rounds of one scenario, the runners in turn within each round."""
        rounds: dict[str, list[Results]] = {}
        for n in range(1 if scenario.once else self.rounds):
            for runner in self._taking_part(scenario):
                say(f"{scenario.name} {n + 1}: {runner.name}")
                try:
                    result = self._run(
                        runner, self.pythons[runner.name], scenario.module_scenario, scenario.params
                    )
                    rounds.setdefault(runner.name, []).append(result)
                except Failed as reason:
                    self.failed.append(f"{scenario.name}, {runner.name}: {reason}")
        self.measured[scenario.name] = {name: report.medians(each) for name, each in rounds.items()}

    def _taking_part(self, scenario: Scenario) -> list[Runner]:
        return [
            one
            for one in RUNNERS
            if one.name in self.pythons
            and (scenario.peers or not one.peer)
            and (scenario.floor or one.name != "floor")
        ]

    def _run(self, runner: Runner, python: Path, scenario: str, params: dict[str, Any]) -> Results:
        # Beside the code, not in /tmp, which may be memory: a flush has to cost what it costs.
        home = HERE / ".work"
        home.mkdir(exist_ok=True)
        store = Path(tempfile.mkdtemp(prefix=f"{runner.name}-{scenario}-", dir=home))
        load = Params(store=store, **{**self.overrides, **params})
        try:
            if scenario == "recovery":
                return recover(python, runner.module, load)
            return run(python, runner.module, scenario, load)
        finally:
            shutil.rmtree(store, ignore_errors=True)


def say(text: str) -> None:
    print(f"  … {text}", file=sys.stderr, flush=True)


def main() -> int:
    names = [one.name for one in SCENARIOS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(names)}; all without one")
    parser.add_argument(
        "--only", action="append", choices=[one.name for one in RUNNERS], help="not everybody"
    )
    parser.add_argument(
        "--rounds", type=int, choices=range(1, 10), default=ROUNDS, help="medians are over this many"
    )
    parser.add_argument("--quick", action="store_true", help="one round of small loads")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    if unknown := set(arguments.scenario) - set(names):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(names)}")

    began = time.monotonic()
    bench = Bench(QUICK if arguments.quick else {}, 1 if arguments.quick else arguments.rounds)
    bench.prepare([one for one in RUNNERS if not arguments.only or one.name in arguments.only])
    chosen = [one for one in SCENARIOS if not arguments.scenario or one.name in arguments.scenario]
    for scenario in chosen:
        bench.measure(scenario)

    present = [one.name for one in RUNNERS if one.name in bench.pythons]
    peers = [one.name for one in RUNNERS if one.peer and one.name in bench.pythons]
    rows = report.rows(chosen, bench.measured, present, peers)
    show = as_json if arguments.json else as_text
    print(show(bench, rows, present, time.monotonic() - began))
    return 1 if bench.failed else 0


def as_json(bench: Bench, rows: Sequence[report.Row], _present: Sequence[str], seconds: float) -> str:
    return json.dumps(
        {
            "lines": [row.to_json() for row in rows],
            "measured": bench.measured,
            "settings": bench.settings,
            "absent": bench.absent,
            "failed": bench.failed,
            "rounds": bench.rounds,
            "seconds": round(seconds),
        },
        indent=2,
        ensure_ascii=False,
    )


def as_text(bench: Bench, rows: Sequence[report.Row], present: Sequence[str], seconds: float) -> str:
    settings = [
        f"  {name}: {', '.join(f'{key} {value}' for key, value in said.items())}"
        for name, said in bench.settings.items()
    ]
    absent = [f"  {name}: absent, not compared: {why}" for name, why in bench.absent.items()]
    failed = [f"  failed: {one}" for one in bench.failed]
    loads = f" Smaller loads than the lines say: {bench.overrides}." if bench.overrides else ""
    took = f"Median of {bench.rounds} (open, idle, stored: one), in turn, {seconds:.0f} s."
    end = f"{took} Trust ratios, not absolutes.{loads}"
    return "\n".join(
        [report.table(rows, present), "", "Durability, as read back:", *settings, *absent, *failed, "", end]
    )


if __name__ == "__main__":
    sys.exit(main())
