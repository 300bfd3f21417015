"""The verdict table of DESIGN.md, row by row."""

import itertools
from typing import Any

import pytest

from perdure.core.facts import OpRow
from perdure.core.verdict import (
    Cut,
    Divergence,
    Doubt,
    Reattach,
    Replay,
    Run,
    key_lives,
    other_asked,
    same,
    verdict,
)

from .rows import MINUTE, an_op

EFFECTS = ("read", "keyed", "once")
NOW = 10 * MINUTE
LIVING_KEY = {"key_until": NOW + 1}
OPEN = {"outcome": None, "settled_at": None}
IN_DOUBT = {"outcome": "doubt", "settled_at": None}
SETTLED = [{"outcome": how, "settled_at": NOW - 1} for how in ("done", "failed", "cut", "cancelled")]


def judge(op: OpRow | None, reattachable: bool = False, now: int = NOW) -> Any:
    return verdict(op, reattachable=reattachable, now=now)


@pytest.mark.parametrize("reattachable", [False, True])
def test_an_op_without_a_row_is_run(reattachable: bool) -> None:
    assert judge(None, reattachable) == Run(None)


@pytest.mark.parametrize("settled", SETTLED, ids=lambda one: one["outcome"])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("handle", [None, b'"run-1"'])
@pytest.mark.parametrize("chunks", [0, 3])
def test_a_settled_op_is_replayed_whatever_it_was(
    settled: dict[str, Any], effect: str, handle: bytes | None, chunks: int
) -> None:
    op = an_op(effect=effect, handle=handle, chunks=chunks, **settled)
    assert judge(op, reattachable=True) == Replay(op)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("chunks", [0, 3])
def test_an_open_op_with_a_living_handle_is_followed(effect: str, chunks: int) -> None:
    op = an_op(effect=effect, handle=b'"run-1"', chunks=chunks, **OPEN)
    assert judge(op, reattachable=True) == Reattach(op)


@pytest.mark.parametrize(
    ("effect", "more", "decided"),
    [
        ("read", {}, Run),
        ("read", {"chunks": 2}, Cut),
        ("keyed", LIVING_KEY, Run),
        ("keyed", {"key_until": NOW}, Doubt),
        ("keyed", {"key_until": NOW - 1}, Doubt),
        ("keyed", {"key_until": None}, Doubt),
        ("once", {}, Doubt),
    ],
)
@pytest.mark.parametrize(
    ("handle", "reattachable"),
    [(None, False), (None, True), (b'"run-1"', False)],
    ids=["no handle", "no handle but a way to follow", "a handle that nobody can follow"],
)
def test_an_open_op_that_cannot_be_followed_is_decided_by_its_effect(
    effect: str, more: dict[str, Any], decided: type, handle: bytes | None, reattachable: bool
) -> None:
    op = an_op(effect=effect, handle=handle, **OPEN, **more)
    assert judge(op, reattachable) == decided(op)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("handle", [None, b'"run-1"'])
def test_a_doubt_stays_a_doubt_until_someone_settles_it(effect: str, handle: bytes | None) -> None:
    op = an_op(effect=effect, handle=handle, **LIVING_KEY, **IN_DOUBT)
    assert judge(op, reattachable=True) == Doubt(op)


@pytest.mark.parametrize(("now", "lives"), [(999, True), (1_000, False), (1_001, False)])
def test_a_key_lives_until_its_time_and_not_at_it(now: int, lives: bool) -> None:
    assert key_lives(an_op(effect="keyed", key_until=1_000), now) is lives


def test_no_irreversible_op_that_was_opened_is_run_again_without_a_living_key() -> None:
    outcomes = (OPEN, IN_DOUBT, *SETTLED)
    rows = itertools.product(("keyed", "once"), outcomes, (None, b"1"), (0, 1), (None, NOW, NOW + 1))
    for effect, outcome, handle, chunks, key_until in rows:
        op = an_op(effect=effect, handle=handle, chunks=chunks, key_until=key_until, **outcome)
        for reattachable in (False, True):
            if isinstance(judge(op, reattachable), Run):
                assert effect == "keyed"
                assert outcome == OPEN
                assert key_lives(op, NOW)
        assert not isinstance(other_asked(op), Run)


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [({}, True), ({"kind": "mail"}, False), ({"args": b"[6]"}, False), ({"effect": "keyed"}, False)],
)
def test_an_op_is_the_same_if_kind_arguments_and_effect_are(changed: dict[str, Any], is_same: bool) -> None:
    assert same(an_op(**changed), "pay", b"[5]", "once") is is_same


@pytest.mark.parametrize("outcome", [OPEN, *SETTLED])
def test_a_read_at_the_place_of_another_op_is_simply_replaced(outcome: dict[str, Any]) -> None:
    assert other_asked(an_op(effect="read", **outcome)) == Run(None)


@pytest.mark.parametrize("effect", ["keyed", "once"])
@pytest.mark.parametrize("settled", SETTLED, ids=lambda one: one["outcome"])
def test_another_op_over_a_settled_irreversible_one_is_a_divergence(
    effect: str, settled: dict[str, Any]
) -> None:
    op = an_op(effect=effect, **settled)
    assert other_asked(op) == Divergence(op)


@pytest.mark.parametrize("effect", ["keyed", "once"])
@pytest.mark.parametrize("outcome", [OPEN, IN_DOUBT], ids=["open", "in doubt"])
def test_another_op_over_an_open_irreversible_one_is_in_doubt(effect: str, outcome: dict[str, Any]) -> None:
    op = an_op(effect=effect, **LIVING_KEY, **outcome)
    assert other_asked(op) == Doubt(op)
