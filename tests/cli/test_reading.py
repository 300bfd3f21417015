"""`perdure ls` and `perdure show`."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from perdure import Runtime
from tests.cli.conftest import Perdure, Shop, World, perdure_process


async def test_ls_lists_sessions_with_derived_status(left: World, perdure: Perdure) -> None:
    said = await perdure("ls", "--store", f"sqlite:///{left.path}", "--json")
    assert said.code == 0
    (one,) = said.json["sessions"]
    assert (one["agent"], one["key"], one["status"]) == ("Shop", "ada", "rescheduling")
    assert (one["fibers"], one["doubts"]) == (2, 1)
    assert one["next_alarm_at"] > 0
    assert one["why"] == "1 fiber waits to be recovered, 1 fiber waits for an answer, 1 op is in doubt"
    assert said.json["after"] is None


async def test_ls_for_a_person_is_a_table(left: World, perdure: Perdure) -> None:
    header, line = (await perdure("ls", "-s", str(left.path))).out.splitlines()
    assert header.split() == ["SESSION", "STATUS", "FIBERS", "DOUBTS", "NEXT", "ALARM"]
    assert line.split()[:4] == ["Shop/ada", "rescheduling", "2", "1"]


async def test_ls_pages_and_filters(world: World, perdure: Perdure) -> None:
    for key in ("a", "b", "c"):
        await world.doubtful(key)
    await world.shop("idle").call(Shop.remind, "x")
    store = str(world.path)
    interrupted = (
        await perdure("ls", "-s", store, "--json", "--status", "interrupted", "--agent", "Shop")
    ).json
    assert {one["key"] for one in interrupted["sessions"]} == {"a", "b", "c"}
    assert (await perdure("ls", "-s", store, "--json", "--agent", "Shop2")).json["sessions"] == []
    seen: list[str] = []
    after = ""
    while after is not None:
        page = (await perdure("ls", "-s", store, "--json", "--limit", "3", "--after", after)).json
        seen += [one["key"] for one in page["sessions"]]
        after = page["after"]
    assert sorted(seen) == ["a", "b", "c", "idle"]
    assert "there are more: perdure ls --after " in (await perdure("ls", "-s", store, "--limit", "1")).out


async def test_an_empty_store_has_no_sessions(world: World, perdure: Perdure) -> None:
    assert (await perdure("ls", "-s", str(world.path))).out == "no sessions\n"


async def test_show_says_why_and_what_to_do(left: World, perdure: Perdure) -> None:
    said = await perdure("show", "Shop/ada", "--store", str(left.path))
    assert said.code == 0
    found = (await perdure("show", "Shop/ada", "--store", str(left.path), "--json")).json
    op, waits = found["doubts"][0]["id"], next(one for one in found["fibers"] if one["doing"] == "waiting")
    assert "status  rescheduling: 1 fiber waits to be recovered, 1 fiber waits for an answer" in said.out
    assert f"perdure resolve {op} --happened [--result JSON] | --did-not-happen" in said.out
    assert f"perdure answer {waits['id']} retry|continue|abandon" in said.out
    assert "The operation may have executed; verify before retrying." in said.out
    assert 'stash {"seen":3}' in said.out
    assert "remind  " in said.out
    assert "op.doubt" in said.out


async def test_show_as_json_has_every_part(left: World, perdure: Perdure) -> None:
    by_address = (await perdure("show", "Shop/ada", "-s", str(left.path), "--json")).json
    by_id = (await perdure("show", by_address["session"]["id"], "-s", str(left.path), "--json")).json
    assert {**by_id, "now": 0} == {**by_address, "now": 0}
    parts = "session state fibers doubts alarms inbox ended ops events now"
    assert list(by_address) == parts.split()
    assert [one["type"] for one in by_address["events"]] == ["op.doubt", "fiber.interrupted"]
    assert by_address["alarms"][0]["repeats"]["every"] == 3_600_000
    assert {one["name"]: one["doing"] for one in by_address["fibers"]} == {
        "buy": "waiting",
        "watch": "orphaned",
    }


async def test_reading_works_beside_a_running_host(world: World, perdure: Perdure) -> None:
    await world.shop("a/b").start(Shop.watch)
    await world.shop("a/b").call(Shop.remind, "tea")
    found = (await perdure("show", "Shop/a/b", "-s", str(world.path), "--json")).json
    assert found["session"]["status"] == "running"
    assert found["session"]["host_lives"]
    assert found["state"] == {"value": {"reminded": "tea"}, "version": 1}
    text = (await perdure("show", "Shop/a/b", "-s", str(world.path))).out
    assert "alive" in text
    assert 'state   {"reminded":"tea"} (version 1)' in text


async def test_names_cannot_write_to_the_terminal(world: World, perdure: Perdure) -> None:
    await world.shop("\x1b[31m[red]\nx").call(Shop.remind, "\x1b]0;gone\x07")
    for said in (
        await perdure("ls", "-s", str(world.path)),
        await perdure("show", "Shop/\x1b[31m[red]\nx", "-s", str(world.path)),
    ):
        assert said.code == 0
        assert "\x1b" not in said.out
        assert "\\x1b[31m[red] x" in said.out


async def test_only_the_last_of_many_are_shown(world: World, perdure: Perdure) -> None:
    for _ in range(4):
        fiber = await world.doubtful()
        await world.shop().answer(fiber, "abandon")
    found = (await perdure("show", "Shop/ada", "-s", str(world.path), "--json", "--limit", "3")).json
    assert len(found["ended"]) == len(found["ops"]) == len(found["events"]) == 3
    assert len(found["doubts"]) == 4
    assert found["events"][-1]["seq"] == found["session"]["seq"]


# --- what cannot be read


async def test_a_typo_in_the_file_makes_no_file(tmp_path: Path, perdure: Perdure) -> None:
    for store in (f"sqlite:///{tmp_path}/typo.db", f"{tmp_path}/typo.db", f"{tmp_path}/no/typo.db"):
        said = await perdure("ls", "--store", store)
        assert said.code == 2
        assert said.out == ""
        assert len(said.err.splitlines()) == 1
        assert "there is no file" in said.err
    assert list(tmp_path.iterdir()) == []


async def test_another_programs_database_is_left_alone(tmp_path: Path, perdure: Perdure) -> None:
    path = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    before = path.read_bytes()
    said = await perdure("ls", "-s", str(path))
    assert (said.code, path.read_bytes()) == (2, before)
    assert "perdure keeps nothing in it" in said.err
    assert [one.name for one in tmp_path.iterdir()] == ["theirs.db"]


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "perdure keeps nothing in it"), (b"hello " * 400, "not an SQLite database")]
)
async def test_a_file_that_is_no_store_is_refused(
    tmp_path: Path, perdure: Perdure, content: bytes, words: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    said = await perdure("ls", "-s", str(path), "--json")
    assert said.code == 2
    assert words in said.error["message"]
    assert path.read_bytes() == content


@pytest.mark.parametrize("store", ["mysql://x/y", "memory:", "sqlite:///:memory:", "sqlite:///", "."])
async def test_a_bad_store_is_the_callers_fault(store: str, perdure: Perdure) -> None:
    said = await perdure("ls", "-s", store, "--json")
    assert said.code == 2
    assert said.error["type"] == "BadStoreUrl"


async def test_without_a_store_it_says_how_to_name_one(
    perdure: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    said = await perdure("ls")
    assert said.code == 2
    assert said.err == (
        "perdure: This input cannot be accepted. "
        "(name the store: --store URL, or the variable PERDURE_STORE)\n"
    )


async def test_a_store_from_the_future_is_a_clear_error(tmp_path: Path, perdure: Perdure) -> None:
    path = tmp_path / "future.db"
    async with Runtime(f"sqlite:///{path}"):
        pass
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE perdure_schema SET version = 999")
    raw.close()
    said = await perdure("ls", "-s", str(path), "--json")
    assert said.code == 1
    assert said.error["type"] == "StoreTooNew"


async def test_an_unknown_session_is_one_line(world: World, perdure: Perdure) -> None:
    said = await perdure("show", "Shop/nobody", "-s", str(world.path))
    assert said.code == 2
    assert said.err == "perdure: There is no such thing in the store. (session Shop/nobody)\n"
    assert (
        "a session is named by its id or as Agent/key"
        in (await perdure("show", "x", "-s", str(world.path))).err
    )


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["show"], ["ls", "--limit", "0"], ["ls", "--nope"], ["answer", "f", "maybe"]]
)
async def test_bad_usage_is_one_line_and_two(arguments: list[str], perdure: Perdure) -> None:
    said = await perdure(*arguments)
    assert (said.code, said.out, len(said.err.splitlines())) == (2, "", 1)
    said = await perdure(*arguments, "--json")
    assert said.code == 2
    assert said.error["type"] == "Usage"


# --- the installed command


async def test_the_installed_command_reads_the_store_of_its_environment(left: World) -> None:
    said = perdure_process("ls", "--json", PERDURE_STORE=str(left.path))
    assert (said.code, said.err) == (0, "")
    assert said.json["sessions"][0]["key"] == "ada"
    failed = perdure_process("show", "Shop/nobody", PERDURE_STORE=str(left.path))
    assert failed.code == 2
    assert "Traceback" not in failed.err


def test_version_and_help() -> None:
    assert perdure_process("--version").out == "perdure 0.1.0\n"
    assert "resolve" in perdure_process().out
