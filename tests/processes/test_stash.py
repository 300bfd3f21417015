"""A stash that was awaited, or written with `stash_now`, is found after any kill."""

from __future__ import annotations

import pytest

from .hosts import Stage

BUSY = {"agent": "Busy", "key": "one"}


@pytest.mark.parametrize("how", ["awaited", "now"])
async def test_a_kill_in_a_computation_right_after_a_stash_finds_it(stage: Stage, how: str) -> None:
    host = stage.host()
    host.send("start", **BUSY, method=how)
    fiber = stage.world.wait_for("busy")["fiber"]
    host.kill()
    stage.host()
    async with stage.look() as look:
        found = await look.ended(fiber)
        assert found.value == (b'{"by":"stash"}' if how == "awaited" else b'{"by":"stash_now"}')
    assert len(stage.world.seen("busy")) == 1


async def test_a_fiber_that_never_yields_is_named_in_a_warning(sqlite_stage: Stage) -> None:
    host = sqlite_stage.host(settings={"slow_step": 0.5})
    host.send("start", **BUSY, method="until", args=["free"])
    host.wait_for_log("the event loop has not run for")
    assert "agents.py" in host.wait_for_log("in compute_until")
    sqlite_stage.world.open("free")
    fiber = sqlite_stage.world.seen("busy")[0]["fiber"]
    assert host.ask("wait", **BUSY, fiber=fiber) == 0
    assert len(host.logged("in compute_until")) == 1


async def test_a_host_whose_loop_stands_still_lets_go(postgres_stage: Stage) -> None:
    """Another one takes over; and the first writes nothing more when it can move again."""
    stage = postgres_stage
    brief = {"lease_lives": 1.5, "loop_stalls": 1.0, "slow_step": 0.5}
    first, second = stage.host(settings=brief), stage.host(settings=brief)
    first.send("start", **BUSY, method="until", args=["free"])
    fiber = stage.world.wait_for("busy")["fiber"]
    first.wait_for_log("the event loop has not run for")
    async with stage.look() as look:
        assert (await look.ended(fiber)).value == b"1"
        assert second.logged("is awake")
        after = await look.everything()
        stage.world.open("free")
        first.wait_for_log("was taken over by another host")
        assert await look.everything() == after
    assert stage.world.effects() == {f"reported-{fiber}": 1}
