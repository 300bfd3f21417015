"""The views for a person: colours on a terminal, whole plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .views import View
from .words import as_line, brief, count, distance, moment, span

ENDLESS = 10_000
"""The width of a pipe: nothing is cut there."""

COLOURS = {
    "idle": "dim",
    "running": "green",
    "working": "green",
    "done": "green",
    "rescheduling": "yellow",
    "orphaned": "yellow",
    "open": "yellow",
    "interrupted": "bold red",
    "waiting": "bold red",
    "doubt": "bold red",
    "failed": "red",
    "cancelled": "dim",
    "terminated": "dim",
}


def overviews(found: list[View], now: int, *, more: bool) -> None:
    console = _console()
    if not found:
        console.print("no sessions")
        return
    table = Table("SESSION", "STATUS", "FIBERS", "DOUBTS", "NEXT ALARM", box=None, pad_edge=False)
    for one in found:
        due_at = one["next_alarm_at"]
        table.add_row(
            Text(_address(one)),
            _coloured(one["status"]),
            str(one["fibers"]),
            Text(str(one["doubts"]), "bold red" if one["doubts"] else ""),
            "-" if due_at is None else distance(due_at - now),
        )
    console.print(table)
    if more:
        console.print(f"there are more: perdure ls --after {found[-1]['id']}")


def portrait(found: View) -> None:
    session, now = found["session"], found["now"]
    console = _console()
    _line(console, Text(_address(session), "bold"), f"  {session['id']}")
    _line(console, "  status  ", _coloured(session["status"]), f": {session['why']}")
    _line(console, f"  owner   {_owner(session)}")
    _line(
        console, f"  created {moment(session['created_at'], now)}, {count(session['seq'], 'event', 'events')}"
    )
    if found["state"] is not None:
        _line(console, f"  state   {brief(found['state']['value'])} (version {found['state']['version']})")
    sections: tuple[tuple[str, str, Callable[[Console, View, int], None]], ...] = (
        ("fibers", "FIBERS", _fiber),
        ("doubts", "DOUBTS", _doubt),
        ("alarms", "ALARMS", _alarm),
        ("inbox", "INBOX", _input),
        ("ended", "ENDED FIBERS, newest first", _ended),
        ("ops", "OPS, newest first", _op),
        ("events", "EVENTS, newest last", _event),
    )
    for key, title, paint in sections:
        if found[key]:
            _line(console)
            _line(console, Text(title, "bold"))
            for one in found[key]:
                paint(console, one, now)


def _fiber(console: Console, one: View, now: int) -> None:
    tried = f", attempt {one['attempt']}" if one["attempt"] else ""
    since = f", started {distance(one['started_at'] - now)}{tried}{_with_key(one)}"
    _line(console, "  ", one["name"], f"  {one['id']}  ", _coloured(one["doing"]), since)
    if one["stash"] is not None:
        _line(console, f"      stash {brief(one['stash'])}")
    if one["question"] is not None:
        _line(console, "      ", Text(as_line(one["question"]["message"]), "red"))
        _line(console, f"      perdure answer {one['id']} retry|continue|abandon")


def _doubt(console: Console, one: View, now: int) -> None:
    _line(console, "  ", one["kind"], f"  {one['id']}  {brief(one['args'])}")
    _line(
        console,
        f"      it was started {distance(one['opened_at'] - now)}, and nobody knows whether it happened",
    )
    _line(console, f"      perdure resolve {one['id']} --happened [--result JSON] | --did-not-happen")


def _alarm(console: Console, one: View, now: int) -> None:
    repeats = "" if one["repeats"] is None else f", repeats {brief(one['repeats'])}"
    _line(
        console,
        "  ",
        one["method"],
        f"  {one['id']}  due {moment(one['due_at'], now)}{repeats}{_with_key(one)}",
    )


def _input(console: Console, one: View, now: int) -> None:
    _line(
        console,
        "  ",
        one["kind"],
        f"  {one['id']}  {brief(one['body'])}, accepted {distance(one['at'] - now)}",
    )


def _ended(console: Console, one: View, now: int) -> None:
    took = f", took {span(one['ended_at'] - one['started_at'])}, ended {distance(one['ended_at'] - now)}"
    value = one["error"] if one["error"] is not None else brief(one["value"])
    _line(
        console, "  ", one["name"], f"  {one['id']}  ", _coloured(one["outcome"]), f"{took}: ", as_line(value)
    )


def _op(console: Console, one: View, now: int) -> None:
    outcome = one["outcome"] or "open"
    place = f"{one['scope']}#{one['step']}" if not one["scope"].startswith("=") else f"key {one['scope'][1:]}"
    parts = ("  ", one["kind"], f"  {one['id']}  {one['effect']}  ", _coloured(outcome))
    result = "" if one["result"] is None else f" -> {brief(one['result'])}"
    _line(
        console, *parts, f", {as_line(place)} of {one['fiber']}, {distance(one['opened_at'] - now)}{result}"
    )


def _event(console: Console, one: View, now: int) -> None:
    _line(console, f"  {one['seq']}  ", one["type"], f"  {distance(one['at'] - now)}  {brief(one['body'])}")


def _owner(session: View) -> str:
    if session["host"] is None:
        return "nobody; the next host that wants it takes it"
    return f"{session['host']}, {'alive' if session['host_lives'] else 'gone'}, epoch {session['epoch']}"


def _address(one: View) -> str:
    return as_line(f"{one['agent']}/{one['key']}")


def _with_key(one: View) -> str:
    return "" if one["key"] is None else f", key {as_line(one['key'])}"


def _coloured(word: str) -> Text:
    return Text(word, COLOURS.get(word, ""))


def _line(console: Console, *parts: str | Text) -> None:
    safe: Iterable[Any] = (one if isinstance(one, Text) else as_line(one) for one in parts)
    console.print(Text.assemble(*safe), soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=ENDLESS)
