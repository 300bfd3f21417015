"""The closed union of writes: every one of them is known to the stores."""

import dataclasses
import typing

import pytest

from perdure.core import writes
from perdure.core.writes import (
    AddChunk,
    Append,
    CloseFiber,
    DropAlarm,
    EnterFiber,
    ForgetOp,
    HandOver,
    HoldHandle,
    OpenFiber,
    OpenOp,
    ParkFiber,
    Progress,
    PutAlarm,
    PutState,
    RecordOp,
    SettleOp,
    Stash,
    TakeInput,
    UnparkFiber,
    Write,
)
from perdure.stores.queries import queries
from perdure.stores.statements import statements

from .rows import a_fiber, an_alarm, an_end, an_op

UNION = typing.get_args(Write)
EXAMPLES: tuple[Write, ...] = (
    OpenFiber(a_fiber()),
    EnterFiber(a_fiber()),
    Stash("f", b"1", b"{}"),
    Progress("f"),
    ParkFiber("f", b"{}"),
    UnparkFiber("f"),
    CloseFiber(an_end()),
    OpenOp(an_op()),
    RecordOp(an_op(outcome="done", settled_at=1)),
    HoldHandle(an_op(), b"1", None),
    AddChunk(an_op(), 1, b"1"),
    SettleOp(an_op(), "done", b"1", 1),
    ForgetOp(an_op()),
    PutAlarm(an_alarm()),
    DropAlarm("a"),
    PutState(b"1", 1),
    Append("op.doubt", b"{}", 1),
    TakeInput("i"),
    HandOver(),
)


def test_the_union_holds_every_write_of_its_module() -> None:
    here = {
        one
        for one in vars(writes).values()
        if dataclasses.is_dataclass(one) and getattr(one, "__module__", "") == writes.__name__
    }
    assert here == set(UNION)


def test_there_is_an_example_of_every_write() -> None:
    assert {type(one) for one in EXAMPLES} == set(UNION)


@pytest.mark.parametrize("write", EXAMPLES, ids=lambda write: type(write).__name__)
def test_every_write_is_known_to_the_sql_stores(write: Write) -> None:
    known = queries()
    meant = list(statements("s", write))
    assert all(query in known for query, _ in meant)
    assert bool(meant) is not isinstance(write, Append), "only events are numbered by the commit itself"


@pytest.mark.parametrize("write", EXAMPLES, ids=lambda write: type(write).__name__)
def test_a_write_is_an_immutable_value(write: Write) -> None:
    assert dataclasses.is_dataclass(write)
    assert type(write).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert write == dataclasses.replace(write)


def test_closing_a_fiber_settles_its_open_ops_unless_it_never_had_any() -> None:
    def meant(write: CloseFiber) -> list[str]:
        return [query for query, _ in statements("s", write)]

    assert meant(CloseFiber(an_end())) == ["close_fiber", "keep_ended", "settle_open_ops"]
    assert meant(CloseFiber(an_end(), may_have_open_ops=False)) == ["close_fiber", "keep_ended"]
