"""Each example runs as it stands."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "demo.py",
        "payment.py",
        "reminders.py",
        "research.py",
        "web.py",
    }


def test_the_payment_is_made_once_and_settled_by_code(tmp_path: Path) -> None:
    lines = run_example("payment.py", cwd=tmp_path).splitlines()
    assert "The operation may have executed; verify before retrying." in lines[0]
    assert lines[1:] == [
        "status: interrupted, because 1 fiber waits for an answer, 1 op is in doubt",
        "the customer was charged 1 time(s)",
        "paid with receipt no. 4711",
    ]


def test_the_reminders_come(tmp_path: Path) -> None:
    lines = run_example("reminders.py", f"sqlite:///{tmp_path}/diary.db", cwd=tmp_path).splitlines()
    assert sorted(lines[:3]) == ["set: beat", "set: standup", "set: tea"]
    assert lines[3] == "noted: a tenth of a second, the tea is ready"
    assert sorted(lines[4:]) == ["goes on: beat", "goes on: standup"]


def test_the_research_runs_without_being_killed(tmp_path: Path) -> None:
    assert run_example("research.py", str(tmp_path), cwd=tmp_path) == "report on tides: 8 findings\n"
    published = (tmp_path / "published.txt").read_text().splitlines()
    assert sorted(published) == ["reminder about tides", "report on tides: 8 findings"]
    assert run_example("research.py", str(tmp_path), cwd=tmp_path) == "report on tides: 8 findings\n"
    assert (tmp_path / "published.txt").read_text().splitlines() == published


def test_a_web_application_keeps_its_work_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setenv("PERDURE_STORE", f"sqlite:///{tmp_path}/reports.db")
    web: Any = importlib.import_module("web")
    with TestClient(web.app) as client:
        first = client.post("/reports/tides")
        assert first.status_code == 202
        second = client.post("/reports/tides").json()
        assert second == {"fiber": first.json()["fiber"], "new": False}
    with TestClient(web.app) as client:
        found = client.get(f"/results/{first.json()['fiber']}")
        assert found.json() == {"result": "tides: fact 0, fact 1, fact 2"}
