"""The bench runs from end to end with tiny loads: what it reports is complete, not that it is fast."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from benchmarks import __main__ as bench
from benchmarks.scenarios import SCENARIOS

TINY: dict[str, Any] = {
    "seconds": 0.05,
    "count": 400,
    "sessions": 10,
    "at_once": 8,
    "units": 10,
    "few": 10,
    "many": 100,
    "idle": 20,
    "stored": 2_000,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(bench, "QUICK", TINY)
    return monkeypatch


def run(given: pytest.MonkeyPatch, *arguments: str) -> int:
    given.setattr(sys, "argv", ["benchmarks", "--quick", "--only", "ours", "--only", "floor", *arguments])
    return bench.main()


def test_every_line_is_measured_for_us_and_the_floor_with_full_durability(
    tiny: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(tiny, "--json")

    said = json.loads(capsys.readouterr().out)
    assert said["failed"] == []
    assert ended == 0
    assert {(name, one["journal_mode"], one["synchronous"]) for name, one in said["settings"].items()} == {
        ("ours", "wal", "FULL"),
        ("floor", "wal", "FULL"),
    }
    lines = {one["line"]: one["values"] for one in said["lines"]}
    assert [name for name, values in lines.items() if values["ours"] is None] == []
    by_floor = {line.title for one in SCENARIOS if one.floor for line in one.lines}
    without_events = by_floor - {"100,000 events ÷ 100 events"}
    assert [name for name in sorted(without_events) if lines[name]["floor"] is None] == []
    assert lines["recorded steps run twice"] == {"ours": 0, "floor": 0}
    assert said["measured"]["recovery"]["ours"]["never_executed"] == 0


def test_the_table_shows_the_numbers_and_a_verdict_for_each_target(
    tiny: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(tiny, "steps")

    said = capsys.readouterr().out
    assert ended == 0
    (line,) = (one for one in said.splitlines() if one.startswith("one session, steps/s"))
    assert "≥ 0.5 × floor: met" in line or "≥ 0.5 × floor: MISSED" in line
    assert "≥ 2 × best peer: nothing to compare with" in line
    assert "ours: version perdure" in said
    assert "Smaller loads than the lines say" in said
