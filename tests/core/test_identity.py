"""Identity: a pure function of place that no release may change."""

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.identity import (
    ROOT,
    Place,
    branch_scope,
    child_scope,
    keyed_place,
    op_id,
    session_id,
)

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
numbers = st.integers(0, 10_000)


def test_the_id_of_an_op_never_changes() -> None:
    assert op_id(Place("f1", "", 0)) == "ccf6c46a16376fb0ac98a85614ccea4e"
    assert op_id(keyed_place("f1", "invoice 7")) == "4b9cd16f9e64f4e1987783209347706d"


def test_the_id_of_a_session_never_changes() -> None:
    assert session_id("Research", "user/7") == "sb11f527356dd0fac974798a8d8f1611"


def test_an_id_depends_on_the_fiber_the_scope_and_the_step() -> None:
    places = [Place(f, s, n) for f in ("f1", "f2") for s in ("", "/1.0") for n in (0, 1)]
    assert len({op_id(one) for one in places}) == len(places)


def test_an_explicit_key_has_the_same_place_anywhere() -> None:
    assert keyed_place("f1", "pay") == keyed_place("f1", "pay")
    assert keyed_place("f1", "pay") != keyed_place("f2", "pay")


@given(names, names)
def test_two_named_scopes_of_one_parent_are_two(one: str, other: str) -> None:
    assert (child_scope(ROOT, one) == child_scope(ROOT, other)) is (one == other)


@given(st.lists(names, max_size=4), st.lists(names, max_size=4))
def test_nested_scopes_are_told_apart_whatever_they_are_called(one: list[str], other: list[str]) -> None:
    def nested(path: list[str]) -> str:
        scope = ROOT
        for name in path:
            scope = child_scope(scope, name)
        return scope

    assert (nested(one) == nested(other)) is (one == other)


@given(names, numbers, numbers)
def test_a_branch_is_never_taken_for_a_named_scope_or_a_key(name: str, step: int, branch: int) -> None:
    scopes = {
        ROOT,
        branch_scope(ROOT, step, branch),
        child_scope(ROOT, name),
        keyed_place("f", name).scope,
        branch_scope(child_scope(ROOT, name), step, branch),
        child_scope(branch_scope(ROOT, step, branch), name),
    }
    assert len(scopes) == 6


@given(names, names, names, names)
def test_sessions_are_told_apart_by_agent_and_key(
    agent: str, key: str, other_agent: str, other_key: str
) -> None:
    same = (agent, key) == (other_agent, other_key)
    assert (session_id(agent, key) == session_id(other_agent, other_key)) is same
