"""`chat`: turns, steering and commands, typed at a terminal or piped; every ending is on record."""

import json
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from retinue.stores.sqlite import open_reading
from tests.e2e.kit import COMMAND, Running, Terminal, call, environment, of_type, one_sentence, retinue, script

HOUR_MS = 3_600_000
ASKS: dict[str, Any] = {
    "agent": "parent",
    "n": 1,
    "text": "I ask one.",
    "tool_calls": [call("spawn_agent", prompt="x", name="kid")],
}
SLOW_KID: dict[str, Any] = {"agent": "child", "delay_ms": HOUR_MS}


def _answers(least: int = 1) -> list[dict[str, Any]]:
    return [{"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(least, 9)]


def _last(folder: Path) -> dict[str, Any]:
    row: dict[str, Any] = retinue(folder, "sessions", "list", "--json").document()["items"][0]
    return row


# ------------------------------------------------------------------------------------------------------------- a pipe


def test_piped_lines_are_turns_one_after_the_other_in_one_session(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "chat", "--model", script(tmp_path, *_answers()), stdin="one\n\ntwo\nthree")
    assert (ran.code, ran.out) == (0, "answer 1\nanswer 2\nanswer 3\n")
    assert (_last(tmp_path)["turns"], _last(tmp_path)["status"]) == (3, "idle")


def test_a_piped_line_waits_until_the_children_of_the_turn_before_have_ended(tmp_path: Path) -> None:
    kid = {"agent": "child", "text": "found", "delay_ms": 300}
    flags = ("--set", "result.turn_end=detach", "--set", "result.idle_parent=store")
    model = script(tmp_path, ASKS, *_answers(2), kid)
    lines = retinue(tmp_path, "chat", "--model", model, *flags, "--json", stdin="one\ntwo\n").lines()
    kinds = [line["type"] for line in lines if line["type"] in ("run.settled", "turn.opened")]
    assert kinds == ["turn.opened", "turn.opened", "run.settled", "turn.opened"]  # the child's turn is the second


def test_a_turn_that_a_letter_starts_shows_up_by_itself(tmp_path: Path) -> None:
    kid = {"agent": "child", "text": "found", "delay_ms": 300}
    model = script(tmp_path, ASKS, *_answers(2), kid)
    ran = retinue(tmp_path, "chat", "--model", model, "--set", "result.turn_end=detach", stdin="one\n")
    assert (ran.code, ran.out) == (0, "answer 2\nanswer 3\n")
    assert "main goes on" in ran.err


def test_json_prints_the_events_as_lines_and_all_else_to_stderr(tmp_path: Path) -> None:
    kid = {"agent": "child", "text": "found"}
    model = script(tmp_path, ASKS, *_answers(2), kid)
    ran = retinue(tmp_path, "chat", "--model", model, "--json", stdin="one\ntwo\n/agents\n/help\n")
    lines = ran.lines()
    root = lines[0]["session_id"]
    assert (ran.code, lines[0]["type"]) == (0, "session.opened")
    assert len([line for line in of_type(lines, "turn.closed") if line["session_id"] == root]) == 2
    assert all(word in ran.err for word in ("kid", "/interrupt"))
    assert [line["seq"] for line in lines if line["session_id"] == root] == list(
        range(1, 1 + sum(line["session_id"] == root for line in lines))
    )


def test_a_session_is_continued_by_its_id_or_as_the_newest(tmp_path: Path) -> None:
    model = script(tmp_path, *_answers())
    root = retinue(tmp_path, "run", "--model", model, "go", "--json").lines()[0]["session_id"]
    assert retinue(tmp_path, "chat", "--session", root, stdin="more\n").out == "answer 2\n"
    ran = retinue(tmp_path, "chat", "--continue", "--json", stdin="and more\n")
    assert (ran.lines()[0]["type"], ran.lines()[-1]["text"]) == ("turn.opened", "answer 3")


def test_commands_answer_while_a_child_works_and_stop_ends_it(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Running(tmp_path, "chat", "--model", model, "--json", stdin=subprocess.PIPE) as chat:
        chat.say("one")
        kid = chat.event("run.started")
        chat.say("/agents")
        chat.say(f"/stop {kid['child_id']}")
        settled = chat.event("run.settled")
        ran = chat.end()
    assert (settled["run_id"], settled["status"]) == (kid["run_id"], "cancelled")
    assert ran.code == 0
    row = next(line for line in ran.err.splitlines() if line.startswith(kid["child_id"]))
    assert row.split()[1:4] == [kid["run_id"], "kid", "running"]
    assert f"{kid['run_id']}: cancelled" in ran.err


def test_interrupt_stops_the_open_turn_and_the_chat_goes_on(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Running(tmp_path, "chat", "--model", model, "--json", stdin=subprocess.PIPE) as chat:
        chat.say("one")
        chat.event("run.started")
        chat.say("/interrupt")
        chat.event("turn.closed", session_id=chat.seen[0]["session_id"], status="interrupted")
        chat.say("two")
        chat.event("turn.closed", session_id=chat.seen[0]["session_id"], status="completed")
        ran = chat.end()
    assert ran.code == 0


def test_quit_ends_what_still_works_and_shows_it(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Running(tmp_path, "chat", "--model", model, "--json", stdin=subprocess.PIPE) as chat:
        chat.say("one")
        chat.event("run.started")
        chat.say("/quit")
        assert chat.end().code == 0
    assert [line["reason"] for line in of_type(chat.seen, "turn.closed")] == ["shutdown", "shutdown"]
    assert _last(tmp_path)["last_turn"] == {"status": "interrupted", "reason": "shutdown"}


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGINT, 2)])
def test_a_signal_to_end_puts_the_ending_on_record(tmp_path: Path, number: int, times: int) -> None:
    model = script(tmp_path, ASKS, {"agent": "parent", "delay_ms": HOUR_MS}, SLOW_KID)
    with Running(tmp_path, "chat", "--model", model, "--json", stdin=subprocess.PIPE) as chat:
        chat.say("one")
        root = chat.event("run.started")["session_id"]
        chat.process.send_signal(number)
        if times == 2:
            chat.event("turn.closed", session_id=root)
            chat.process.send_signal(number)
        assert chat.process.wait() == 3
        assert chat.process.stderr is not None
        assert "Traceback" not in chat.process.stderr.read()
    assert _last(tmp_path)["status"] == "idle"
    assert retinue(tmp_path, "runs", "list", "--open", "--json").document()["items"] == []


def test_lines_that_cannot_be_said_are_refused_and_the_chat_goes_on(tmp_path: Path) -> None:
    model = script(tmp_path, *_answers())
    done = subprocess.run(
        [*COMMAND, "chat", "--model", model],
        cwd=tmp_path,
        env=environment(tmp_path),
        input=b"\xff\xfe\n/nope\n/stop\n/stop r_unknown\n /tmp is what?\n",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"answer 1\n")
    said = done.stderr.decode()
    assert all(words in said for words in ("not UTF-8", "no command /nope", "/stop takes one id", "'r_unknown'"))


def test_a_chat_that_cannot_begin_is_refused_like_a_run(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "chat", stdin="hello\n")
    assert (ran.code, "--model offline" in one_sentence(ran)) == (2, True)
    ran = retinue(tmp_path, "chat", "--session", "s_x", "--continue")
    assert (ran.code, list(tmp_path.iterdir())) == (2, [])


# --------------------------------------------------------------------------------------------------------- a terminal


def test_a_line_typed_while_a_turn_is_open_goes_into_it(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Terminal(tmp_path, "chat", "--model", model) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until(r"kid \(s_\w+\): running")
        terminal.type("and look there\n")
        terminal.until("said into the open turn")
        terminal.type("/agents\n")
        kid = terminal.until(r"s_\w+ +r_\w+ +kid +running").split()[1]
        terminal.type(f"/stop {kid}\n")
        terminal.until("answer [3-9]")
        terminal.type("\x04")
        assert terminal.end() == 0
    events = _events(tmp_path)
    assert [line["text"] for line in of_type(events, "message.user") if line["source"] == "steer"] == ["and look there"]
    assert _last(tmp_path)["turns"] == 1


def test_what_the_model_says_while_its_turn_is_held_open_is_shown_at_once_and_once(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Terminal(tmp_path, "chat", "--model", model) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until("answer 2")
        terminal.type("what is the time?\n")
        terminal.until("answer 3")
        terminal.type("/agents\n")
        terminal.until(r"kid .*running")
        terminal.type("/stop " + _last_child(tmp_path) + "\n")
        terminal.until(r"answer 4[\s\S]*> ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert [terminal.got.count(f"answer {n}") for n in (2, 3, 4)] == [1, 1, 1]


def _last_child(folder: Path) -> str:
    (run,) = retinue(folder, "runs", "list", "--json").document()["items"]
    return str(run["session_id"])


def test_ctrl_c_interrupts_the_open_turn_and_twice_ends_the_chat(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers(2), SLOW_KID)
    with Terminal(tmp_path, "chat", "--model", model) as terminal:
        terminal.until("> ")
        terminal.type("one\n")
        terminal.until(r"kid \(s_\w+\): running")
        terminal.type("\x03")
        terminal.until("interrupted")
        terminal.until("> ")
        terminal.type("two\n")
        terminal.until("answer [3-9]")
        terminal.until("> ")
        terminal.type("\x03")
        terminal.until("Ctrl-C once more")
        terminal.type("\x03")
        assert terminal.end() == 3
    assert (_last(tmp_path)["turns"], _last(tmp_path)["status"]) == (2, "idle")
    assert "Traceback" not in terminal.got


def _events(folder: Path) -> list[dict[str, Any]]:
    store = open_reading(folder / ".retinue" / "retinue.sqlite3")
    try:
        return [json.loads(json.dumps(event.to_dict())) for event in store.tail(0)]
    finally:
        store.close()


# ------------------------------------------------------------------------------------------------ a store that fails


def _small_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


def test_a_failed_commit_ends_the_chat_and_says_that_it_is_not_stored(tmp_path: Path) -> None:
    big = {"n": 2, "text": "x" * 400_000}
    model = script(tmp_path, {"n": 1, "text": "first"}, big, {"n": 3, "text": "third"})
    assert retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}, name="warm.jsonl"), "go").code == 0
    ran = retinue(tmp_path, "chat", "--model", model, "--json", stdin="one\ntwo\nthree\n", preexec_fn=_small_disk)
    last = ran.lines()[-1]
    assert (ran.code, "Traceback" in ran.err) == (5, False)
    assert (last["type"], last["reason"], last["stored"]) == ("turn.closed", "store_failed", False)
    assert _last(tmp_path)["last_turn"] == {"status": "interrupted", "reason": "restart"}


def test_a_chat_whose_output_cannot_be_written_says_so(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("There is no /dev/full here.")
    model = script(tmp_path, *_answers(1))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "chat", "--model", model],
            cwd=tmp_path, env=environment(tmp_path), input=b"hi\n", stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert b"cannot be written" in done.stderr


def test_doctor_finds_a_switch_that_does_not_exist(tmp_path: Path) -> None:
    folder = tmp_path / ".retinue"
    folder.mkdir(mode=0o700)
    (folder / "config.toml").write_text('[policy]\n"caps.nonsense" = 1\n')
    checked = retinue(tmp_path, "doctor")
    assert checked.code == 1
    assert "There is no switch 'caps.nonsense'" in checked.out
