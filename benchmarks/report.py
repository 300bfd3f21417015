"""From results to a table: medians, ratios, and whether each target is met."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measure import Results
from benchmarks.scenarios import Against, Line, Scenario, Target

Measured = Mapping[str, Mapping[str, Results]]
"""Scenario name, then runner name, then the medians of its metrics."""


def medians(rounds: Sequence[Results]) -> Results:
    """Of each metric, over all rounds."""
    return {metric: statistics.median(one[metric] for one in rounds) for metric in rounds[0]}


@dataclass(frozen=True)
class Row:
    """One line of the report with its numbers; `None` where nothing was measured."""

    line: Line
    scenario: str
    values: dict[str, float | None]
    best_peer: str | None

    @property
    def ours(self) -> float | None:
        return self.values.get("ours")

    def ratio(self, against: Against) -> float | None:
        """Ours divided by the floor's, or by that of the best peer that was measured."""
        other = "floor" if against is Against.FLOOR else self.best_peer
        base = self.values.get(other) if other else None
        return self.ours / base if self.ours is not None and base else None

    def verdict(self, target: Target) -> str:
        value = self.ours if target.against is Against.FIXED else self.ratio(target.against)
        if value is None:
            return "not measured" if self.ours is None else "nothing to compare with"
        met = value >= target.number if self.line.more_is_better else value <= target.number
        return "met" if met else "MISSED"

    def to_json(self) -> Results:
        return {
            "scenario": self.scenario,
            "line": self.line.title,
            "values": self.values,
            "best_peer": self.best_peer,
            "of_floor": self.ratio(Against.FLOOR),
            "of_best_peer": self.ratio(Against.PEER),
            "targets": [
                {"target": describe(self.line, one), "verdict": self.verdict(one)}
                for one in self.line.targets
            ],
        }


def rows(
    scenarios: Iterable[Scenario], measured: Measured, runners: Sequence[str], peers: Sequence[str]
) -> list[Row]:
    return [
        _row(scenario, line, measured.get(scenario.name, {}), runners, peers)
        for scenario in scenarios
        for line in scenario.lines
    ]


def _row(
    scenario: Scenario,
    line: Line,
    results: Mapping[str, Results],
    runners: Sequence[str],
    peers: Sequence[str],
) -> Row:
    values = {name: results.get(name, {}).get(line.metric) for name in runners}
    present = {name: value for name in peers if (value := values[name]) is not None}
    best = max if line.more_is_better else min
    return Row(line, scenario.name, values, best(present, key=lambda name: present[name], default=None))


def describe(line: Line, target: Target) -> str:
    sign = "≥" if line.more_is_better else "≤"
    return f"{sign} {number(target.number)}{target.against.value}"


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"


def table(report: Sequence[Row], runners: Sequence[str]) -> str:
    """Plain text: numbers, ratios of ours, then each target with its verdict."""
    head = ["", *runners, "ours ÷ floor", "ours ÷ best peer", "target"]
    body = [
        [
            row.line.title,
            *(number(row.values[name]) for name in runners),
            number(row.ratio(Against.FLOOR)),
            _peer_ratio(row),
            "; ".join(f"{describe(row.line, one)}: {row.verdict(one)}" for one in row.line.targets),
        ]
        for row in report
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return "\n".join(_aligned(cells, widths) for cells in (head, ["─" * width for width in widths], *body))


def _peer_ratio(row: Row) -> str:
    ratio = row.ratio(Against.PEER)
    return "–" if ratio is None else f"{number(ratio)} ({row.best_peer})"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *middle, last = cells
    numbers = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
    return "  ".join([first.ljust(widths[0]), *numbers, last]).rstrip()
