"""Errors: the docstring is the message, and unwinding is not an error."""

import inspect

import pytest

import perdure
from perdure import Diverged, Fenced, FiberFailed, InProgress, NotFound, OpFailed, PerdureError, Uncertain
from perdure.core import errors

KINDS = [
    one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, PerdureError | Fenced)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_a_docstring_and_is_exported(kind: type[BaseException]) -> None:
    assert kind.__doc__
    assert kind.__doc__.strip().endswith((".", "…"))
    assert getattr(perdure, kind.__name__) is kind


def test_the_docstring_is_the_message_and_the_detail_follows() -> None:
    assert str(NotFound()) == "There is no such thing in the store."
    assert str(NotFound("(fiber f1)")) == "There is no such thing in the store. (fiber f1)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Uncertain("op1", "pay"), "may have executed; verify before retrying. (operation op1, 'pay')"),
        (OpFailed("op1", "pay", "ValueError: no"), "was tried and failed. ('pay': ValueError: no)"),
        (Diverged("op1", "pay[5]", "mail[]", ("", 0)), "(recorded pay[5], asked mail[], operation op1)"),
        (InProgress(2.5), "(again in 2.5 s)"),
        (FiberFailed("f1", "ValueError: no"), "ended with an error. (f1: ValueError: no)"),
    ],
)
def test_an_outcome_says_what_it_is_about(error: PerdureError, said: str) -> None:
    assert said in str(error)


def test_fenced_passes_through_every_except_exception() -> None:
    assert not issubclass(Fenced, Exception)
