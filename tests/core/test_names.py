"""What may be called what: 1 to 512 bytes of UTF-8 without NUL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import BadInput, BadName, PerdureError
from perdure.core.names import LONGEST_NAME, check_name


@given(st.text())
def test_a_name_is_accepted_exactly_if_it_can_be_one(name: str) -> None:
    try:
        fits = 1 <= len(name.encode()) <= LONGEST_NAME and "\0" not in name
    except UnicodeEncodeError:
        fits = False
    if fits:
        assert check_name(name, "a fiber") == name
    else:
        with pytest.raises(BadName):
            check_name(name, "a fiber")


@pytest.mark.parametrize("name", ["a", "a/b:c", "../../etc", "ä" * 256, "x" * 512, " ", "\n", "名前"])
def test_unusual_names_are_names(name: str) -> None:
    assert check_name(name, "a fiber") == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "a fiber: 0 bytes"),
        ("x" * 513, "a fiber: 513 bytes"),
        ("ä" * 257, "a fiber: 514 bytes"),
        ("x" * 1_000_000, "a fiber: 1000000 bytes"),
        ("a\0b", "a fiber: has a NUL"),
        ("\ud800", "a fiber: not UTF-8"),
        (None, "a fiber: got NoneType"),
        (7, "a fiber: got int"),
        (b"bytes", "a fiber: got bytes"),
    ],
)
def test_a_refused_name_says_what_it_was_for_and_why(name: object, said: str) -> None:
    with pytest.raises(BadName) as refused:
        check_name(name, "a fiber")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_bad_name_is_bad_input_and_a_value_error() -> None:
    assert issubclass(BadName, BadInput)
    assert issubclass(BadName, ValueError)
    assert issubclass(BadName, PerdureError)
