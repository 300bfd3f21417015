"""`make demo`: what it shows is true, and its check can fail."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def verdict_lines(shown: str) -> dict[str, str]:
    lines = shown.rsplit("\n\n", 1)[1].splitlines()
    return {line[:24].strip(): line[24:].strip() for line in lines}


def test_the_demo_loses_nothing_and_doubles_nothing() -> None:
    done = run_demo()
    assert (done.returncode, done.stderr) == (0, "")
    said = verdict_lines(done.stdout)
    assert said["kills"] == "step 3, step 6, publishing"
    assert said["steps lost"] == "0 of 8"
    assert said["side effects doubled"] == "0 of 2"
    assert said["verdict"] == "right"
    assert done.stdout.count("SIGKILL") == 3
    assert "published before? yes" in done.stdout
    assert "the alarm fires" in done.stdout


@pytest.mark.slow
def test_the_demo_fails_without_the_ledger() -> None:
    done = run_demo("--sabotage")
    assert done.returncode == 1
    said = verdict_lines(done.stdout)
    assert said["steps lost"].startswith("8 of 8")
    assert said["side effects doubled"] == "2 of 2"
    assert said["verdict"] == "WRONG"


# --- the check itself, on made-up evidence


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    import demo  # pyright: ignore[reportMissingImports]

    return demo


@pytest.fixture
def good(demo: ModuleType) -> Any:
    return demo.Evidence(
        witnessed=[{"what": what, "step": n} for n in range(1, 9) for what in ("begun", "recorded")],
        published=list(demo.PUBLISHED),
        findings=[f"finding {n} on tides" for n in range(1, 9)],
        killed_during=["step 3", "publishing"],
        recoveries=[0.2, 0.3],
    )


def test_good_evidence_is_right(demo: ModuleType, good: Any) -> None:
    assert all(one.right for one in demo.verdict(good))


def test_a_step_that_was_begun_again_before_it_was_recorded_is_not_lost(demo: ModuleType, good: Any) -> None:
    cut = replace(good, witnessed=[{"what": "begun", "step": 3}, *good.witnessed])
    assert all(one.right for one in demo.verdict(cut))


@pytest.mark.parametrize(
    ("wrong", "change"),
    [
        ("kills", {"killed_during": ["step 3"], "recoveries": [0.2]}),
        ("steps lost", {"witnessed": [{"what": w, "step": 3} for w in ("begun", "recorded", "begun")]}),
        ("steps lost", {"findings": ["finding 1 on tides"]}),
        (
            "side effects doubled",
            {"published": ["reminder about tides"] * 2 + ["report on tides: 8 findings"]},
        ),
        ("side effects missing", {"published": ["reminder about tides"]}),
        ("left over", {"open_fibers": 1}),
        ("left over", {"doubts": 1}),
        ("left over", {"alarms": 1}),
        ("time to recovery", {"recoveries": [0.2, 5.1]}),
        ("time to recovery", {"recoveries": [0.2]}),
    ],
)
def test_bad_evidence_is_found(demo: ModuleType, good: Any, wrong: str, change: dict[str, Any]) -> None:
    assert [one.what for one in demo.verdict(replace(good, **change)) if not one.right] == [wrong]
