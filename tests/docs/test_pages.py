"""Everything the documentation tells a reader to run, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, run, same_output
from tests.docs.test_readme import NOTEBOOK, PROGRAM

IN_TEST_README = (PROGRAM, NOTEBOOK)
"""Blocks that are run in another way there."""

MOST_NOT_RUN = 4


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One folder per page: a later block finds what an earlier one left."""
    environment: dict[str, str] = {}
    for block in blocks(page):
        if block.not_run or block in IN_TEST_README:
            continue
        if "DATABASE_URL" in block.code and not environment:
            environment["DATABASE_URL"] = request.getfixturevalue("pg_database")
        printed = run(block, tmp_path, environment)
        if block.expected is not None:
            assert same_output(printed, block.expected), f"{block.name} printed\n{printed}"


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    left_out = [block for page in PAGES for block in blocks(page) if block.not_run]
    assert len(left_out) <= MOST_NOT_RUN
    assert all(len(block.not_run or "") > 10 for block in left_out)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    text = (ROOT / page).read_text(encoding="utf-8")
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)`", text)) <= targets
