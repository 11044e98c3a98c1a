"""`run`: what it prints where, in which order, and with which exit code."""

from pathlib import Path

import pytest

from tests.e2e.kit import call, of_type, one_sentence, retinue, script

TREE = (
    {
        "agent": "parent",
        "text": "I delegate.",
        "tool_calls": [call("spawn_agent", prompt="count", name="counter"), call("spawn_agent", prompt="look")],
    },
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 6)),
    {"agent": "child", "text": "child done", "usage": {"input": 10, "output": 2}},
)


def test_without_json_and_terminal_stdout_is_the_final_text_only(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "Nothing to do."}), "look")
    assert (ran.code, ran.out) == (0, "Nothing to do.\n")
    assert "main: completed" in ran.err


@pytest.mark.parametrize("dash", [(), ("-",)])
def test_without_an_argument_the_prompt_is_read_from_stdin(tmp_path: Path, dash: tuple[str, ...]) -> None:
    model = script(tmp_path, {"text": "ok"})
    ran = retinue(tmp_path, "run", *dash, "--model", model, "--json", stdin="grüße\nzwei\n")
    assert ran.code == 0
    assert of_type(ran.lines(), "message.user")[0]["text"] == "grüße\nzwei\n"


def test_json_prints_every_stored_event_of_the_tree_once_and_in_order(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "run", "--model", script(tmp_path, *TREE), "go", "--json")
    lines = ran.lines()
    root = lines[0]["session_id"]
    assert ran.code == 0
    assert (lines[0]["type"], lines[0]["parent_id"]) == ("session.opened", None)
    assert (lines[-1]["type"], lines[-1]["session_id"], lines[-1]["status"]) == ("turn.closed", root, "completed")
    positions = [line["position"] for line in lines]
    assert positions == list(range(positions[0], positions[0] + len(lines)))
    assert {line["type"] for line in lines} >= {"run.queued", "run.started", "run.settled", "letter.absorbed"}
    shown = retinue(tmp_path, "sessions", "show", root, "--json").document()
    assert shown["stored_events"] == sum(line["session_id"] == root for line in lines)


def test_deltas_add_lines_that_are_not_stored(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "one two three four"})
    lines = retinue(tmp_path, "run", "--model", model, "go", "--json", "--deltas").lines()
    deltas = of_type(lines, "delta")
    assert "".join(delta["text"] for delta in deltas) == "one two three four"
    assert not any("seq" in delta or "position" in delta for delta in deltas)
    assert retinue(tmp_path, "run", "--model", model, "go", "--deltas").code == 2


def test_a_session_is_continued_and_the_first_line_opens_its_next_turn(tmp_path: Path) -> None:
    model = script(tmp_path, {"n": 1, "text": "first"}, {"n": 2, "text": "second"})
    root = retinue(tmp_path, "run", "--model", model, "one", "--json").lines()[0]["session_id"]
    ran = retinue(tmp_path, "run", "--session", root, "two", "--json")
    lines = ran.lines()
    assert (ran.code, lines[0]["type"], lines[0]["turn"]) == (0, "turn.opened", 2)
    assert lines[-1]["text"] == "second"


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "offline"),
        ("--agent", "explorer"),
        ("--policy", "standard"),
        ("--set", "caps.running.root=2"),
        ("--profile", "ask"),
        ("--approval", "bypass"),
        ("--cwd", ".."),
    ],
)
def test_what_would_change_a_stored_session_is_refused(tmp_path: Path, flags: tuple[str, str]) -> None:
    model = script(tmp_path, {"text": "first"})
    data = str(tmp_path / "data")
    root = retinue(tmp_path, "run", "--data-dir", data, "--model", model, "one", "--json").lines()[0]["session_id"]
    ran = retinue(tmp_path, "run", "--data-dir", data, "--session", root, *flags, "two")
    assert ran.code == 2
    assert flags[0] in one_sentence(ran)
    assert retinue(tmp_path, "sessions", "show", root, "--data-dir", data, "--json").document()["turns"] == 1


def test_a_child_session_is_not_prompted_by_the_command(tmp_path: Path) -> None:
    lines = retinue(tmp_path, "run", "--model", script(tmp_path, *TREE), "go", "--json").lines()
    child = of_type(lines, "run.started")[0]["child_id"]
    ran = retinue(tmp_path, "run", "--session", child, "and now")
    assert (ran.code, "is a child" in one_sentence(ran)) == (2, True)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ({"text": "", "error": "the model broke"}, 1, "failed (provider_error)"),
        ({"text": "half", "finish": "length"}, 1, "failed (token_limit)"),
        ({"text": "no", "finish": "refusal"}, 1, "failed (refusal)"),
    ],
)
def test_a_turn_that_did_not_complete_leaves_stdout_empty(
    tmp_path: Path, line: dict[str, str], code: int, words: str
) -> None:
    ran = retinue(tmp_path, "run", "--model", script(tmp_path, line), "go")
    assert (ran.code, ran.out) == (code, "")
    assert words in one_sentence(ran)
    assert line["text"] in ran.err


def test_a_failed_child_does_not_fail_the_command(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        {"agent": "parent", "text": "go", "tool_calls": [call("spawn_agent", prompt="break")]},
        *({"agent": "parent", "n": n, "text": "done anyway"} for n in (2, 3)),
        {"agent": "child", "error": "broken"},
    )
    ran = retinue(tmp_path, "run", "--model", model, "go", "--json")
    assert (ran.code, of_type(ran.lines(), "run.settled")[0]["status"]) == (0, "failed")


def test_switches_are_set_for_a_new_session(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "ok"})
    flags = ("--set", "caps.running.root=1", "--set", "life.run_timeout_s=none")
    opened = retinue(tmp_path, "run", "--model", model, *flags, "go", "--json").lines()[0]
    assert opened["policy"] == {"name": "standard", "set": {"caps.running.root": 1, "life.run_timeout_s": None}}


def test_tools_of_your_own_are_offered_and_called(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('def double(n: int) -> int:\n    """Double it."""\n    return 2 * n\n')
    model = script(tmp_path, {"tool_calls": [call("double", n=21)]}, {"text": "ok"})
    ran = retinue(tmp_path, "run", "--model", model, "--tools", "mine:double", "go", "--json")
    assert (ran.code, of_type(ran.lines(), "tool.finished")[0]["text"]) == (0, "42")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--modell", "x"), "--modell"),
        (("run", "two", "words"), "'words'"),
        (("run", "x", "--model", "offline", "--set", "nonsense"), "key=value"),
        (("run", "x", "--model", "offline", "--set", "no.such=1"), "no.such"),
        (("run", "x", "--model", "offline", "--set", "rights.claims=off"), "rights.claims"),
        (("run", "x", "--model", "offline", "--policy", "rooster"), "rooster"),
        (("run", "x", "--model", "offline", "--profile", "root"), "root"),
        (("run", "x", "--model", "offline", "--agent", "nobody"), "nobody"),
        (("run", "x", "--model", "offline", "--tools", "no_such_module:x"), "no_such_module"),
        (("run", "x", "--model", "offline", "--cwd", "nowhere"), "nowhere"),
        (("run", "x", "--session", "s_unknown"), "s_unknown"),
        (("run", "  ", "--model", "offline"), "empty"),
        (("runs", "wait"), "ID"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = retinue(tmp_path, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert words in one_sentence(ran)
    assert not (tmp_path / "nowhere").exists()


def test_with_json_a_refusal_is_the_problem_object(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "run", "x", "--model", "offline", "--set", "no.such=1", "--json")
    problem = ran.document()
    assert (ran.code, problem["code"], problem["status"]) == (2, "invalid", 422)
    assert set(problem) == {"type", "title", "status", "detail", "code", "hint"}
    assert problem["detail"] in one_sentence(ran)
