"""The control socket's methods that no command prints yet, and what Python says of the same: policy, switch, delete."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.app import Runtime
from retinue.control import call_owner
from retinue.core.errors import RetinueError
from retinue.stores.owner import read_owner
from tests.e2e.kit import script


async def _ask(runtime: Runtime, method: str, **params: Any) -> dict[str, Any]:
    owner = read_owner(runtime.settings.data_dir)
    assert owner is not None
    assert owner["socket"]
    return await call_owner(owner["socket"], method, params)


def _open(folder: Path) -> Runtime:
    script(folder, {"text": "done"})
    return retinue.open(folder / ".retinue", model=f"scripted:{folder / 'script.jsonl'}")


def test_the_policy_of_a_tree_is_read_and_set_while_it_lives(tmp_path: Path) -> None:
    async def story() -> None:
        async with _open(tmp_path) as runtime:
            root = await runtime.create_session(cwd=tmp_path, policy="courier")
            before = await _ask(runtime, "policy.get", session=root.session_id)
            assert (before["name"], before["set"], before["values"]["caps.running.parent"]) == ("courier", {}, 4)
            after = await _ask(runtime, "policy.set", session=root.session_id, set={"caps.running.root": 2})
            assert (after["set"], after["values"]["caps.running.root"]) == ({"caps.running.root": 2}, 2)
            assert await _ask(runtime, "policy.get", session=root.session_id) == after
            policy = await runtime.set_policy(root, {"caps.running.root": None})
            assert policy["caps.running.root"] is None
            for wrong, code in (({"no.such": 1}, "invalid"), ({"rights.claims": "off"}, "unsupported"), (7, "invalid")):
                with pytest.raises(RetinueError) as refused:
                    await _ask(runtime, "policy.set", session=root.session_id, set=wrong)
                assert refused.value.code == code
            with pytest.raises(RetinueError) as refused:
                await _ask(runtime, "policy.get", session="s_unknown")
            assert refused.value.code == "not_found"

    asyncio.run(story())


def test_the_switch_and_deletion_say_the_same_over_the_socket_and_in_python(tmp_path: Path) -> None:
    async def story() -> None:
        async with _open(tmp_path) as runtime:
            assert await _ask(runtime, "switch.get") == {"on": True}
            await runtime.set_switch(False)
            assert await _ask(runtime, "switch.get") == {"on": False}
            assert (await _ask(runtime, "switch.set", on=True), runtime.switch_on) == ({"on": True}, True)
            with pytest.raises(RetinueError) as refused:
                await _ask(runtime, "switch.set", on="yes")
            assert refused.value.code == "invalid"
            first, second = [await runtime.create_session(cwd=tmp_path) for _ in range(2)]
            await first.prompt("go").result
            assert await runtime.delete(first) == (first.session_id,)
            assert await _ask(runtime, "sessions.delete", id=second.session_id) == {"deleted": [second.session_id]}
            with pytest.raises(RetinueError) as refused:
                await runtime.session_row(first.session_id)
            assert refused.value.code == "not_found"

    asyncio.run(story())
