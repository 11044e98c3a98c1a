"""What is wrong is said in one clear sentence with the right exit code, and nothing is lost."""

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.cli.doctor import FREE_LEAST_BYTES, room
from tests.e2e.kit import SEARCH, Running, call, one_sentence, retinue, script, without_root_rights


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder below one that the user of the tests cannot write to, given back in the end."""
    locked = tmp_path / "locked"
    locked.mkdir()
    yield locked
    locked.chmod(0o755)


def test_no_model_named_says_what_to_use_and_makes_nothing(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "run", "go")
    assert (ran.code, ran.out) == (2, "")
    sentence = one_sentence(ran)
    assert "--model offline" in sentence
    assert all(name in sentence for name in ("RETINUE_MODEL", "OPENAI_API_KEY", "OPENAI_BASE_URL"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "model", ["nonsense", "openai:some", "openai", "anthropic:some", "scripted:missing.jsonl", "nobody:model"]
)
def test_a_wrong_model_is_exit_2(tmp_path: Path, model: str) -> None:
    ran = retinue(tmp_path, "run", "--model", model, "go")
    assert (ran.code, ran.out) == (2, "")
    assert one_sentence(ran)
    assert retinue(tmp_path, "sessions", "list", "--json").document()["items"] == []


def test_a_damaged_database_is_exit_5_and_stays_as_it_is(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "ok"})
    assert retinue(tmp_path, "run", "--model", model, "go").code == 0
    database = tmp_path / ".retinue" / "retinue.sqlite3"
    for extra in tmp_path.glob(".retinue/retinue.sqlite3-*"):
        extra.unlink()
    garbage = b"no database at all" * 400
    database.write_bytes(garbage)
    commands = (("run", "--model", model, "go"), ("sessions", "list"), ("runs", "list"), ("doctor",))
    for arguments in commands:
        ran = retinue(tmp_path, *arguments)
        assert ran.code == 5, arguments
        assert "retinue.sqlite3" in (ran.out if arguments == ("doctor",) else one_sentence(ran))
    assert database.read_bytes() == garbage


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    sqlite3 = pytest.importorskip("sqlite3")
    (tmp_path / ".retinue").mkdir()
    with sqlite3.connect(tmp_path / ".retinue" / "retinue.sqlite3") as other:
        other.execute("CREATE TABLE cats (name TEXT)")
    other.close()
    ran = retinue(tmp_path, "run", "--model", "offline", "go")
    assert (ran.code, "another program" in one_sentence(ran)) == (5, True)


@pytest.mark.parametrize("command", [("run", "--model", "offline", "go"), ("demo", ".")])
def test_a_folder_without_rights_is_exit_5_and_names_the_way_out(folder: Path, command: tuple[str, ...]) -> None:
    folder.chmod(0o555)
    ran = retinue(folder, *command, **without_root_rights())
    assert (ran.code, ran.out) == (5, "")
    assert str(folder) in one_sentence(ran)
    assert "--data-dir" in ran.err


def test_a_data_directory_that_may_not_be_entered_is_exit_5(folder: Path) -> None:
    model = script(folder, {"text": "ok"})
    assert retinue(folder, "run", "--model", model, "go").code == 0
    (folder / ".retinue").chmod(0o000)
    try:
        for arguments in (("run", "--model", model, "go"), ("sessions", "list")):
            ran = retinue(folder, *arguments, **without_root_rights())
            assert (ran.code, ran.out) == (5, "")
            assert ".retinue" in one_sentence(ran)
    finally:
        (folder / ".retinue").chmod(0o700)


def test_a_file_in_the_place_of_the_data_directory_is_exit_5(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in ("file", "file/below"):
        ran = retinue(tmp_path, "run", "--model", "offline", "--data-dir", place, "go")
        assert (ran.code, "a file stands in its place" in one_sentence(ran)) == (5, True)


def test_a_broken_settings_file_is_named_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    (tmp_path / ".retinue" / "config.toml").write_text("model = \n")
    ran = retinue(tmp_path, "run", "go")
    assert (ran.code, "config.toml" in one_sentence(ran)) == (2, True)
    assert retinue(tmp_path, "config", "show").code == 1
    assert "config.toml" in retinue(tmp_path, "doctor").out


def test_after_a_failed_commit_the_last_line_says_that_it_is_not_stored(tmp_path: Path) -> None:
    big = "x" * 400_000
    model = script(
        tmp_path,
        {"n": 1, "text": "first", "tool_calls": [call("list_dir", path=".")]},
        {"n": 2, "text": big, "tool_calls": [call("list_dir", path=".")]},
        {"n": 3, "text": big},
    )
    assert retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}, name="warm.jsonl"), "go").code == 0
    ran = retinue(tmp_path, "run", "--model", model, "go", "--json", preexec_fn=_small_disk)
    lines = ran.lines()
    last = lines[-1]
    assert ran.code == 5, ran.err
    assert (last["type"], last["status"], last["reason"], last["stored"]) == (
        "turn.closed",
        "failed",
        "store_failed",
        False,
    )
    assert not {"seq", "position"} & set(last)
    assert (last["turn"], last["session_id"]) == (1, lines[0]["session_id"])
    stored = retinue(tmp_path, "sessions", "show", last["session_id"], "--json").document()
    assert stored["last_turn"] == {"status": "interrupted", "reason": "restart"}
    assert stored["stored_events"] >= len(lines) - 1


def _small_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))


def test_a_doctor_says_what_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "doctor", "--json")
    checks = {check["check"]: check for check in ran.document()["items"]}
    assert ran.code == 0
    assert {"python", "sqlite", "data directory", "record", "model", "key of openai"} <= set(checks)
    assert (checks["model"]["status"], bool(checks["model"]["remedy"])) == ("warn", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "nope"),
        ("--model", "offline", "--agent", "nope"),
        ("--model", "offline", "--policy", "nope"),
        ("--model", "offline", "--set", "no.switch=1"),
        ("--session", "nope", "--cwd", "."),
        ("--session", "s_\udcff"),
    ],
)
def test_a_run_that_cannot_be_makes_nothing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ran = retinue(tmp_path, "run", *flags, "go", env=SEARCH)
    assert (ran.code, ran.out, bool(one_sentence(ran))) == (2, "", True)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_that_is_too_long_leaves_no_session(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "run", "--model", "offline", stdin="x" * 2_000_001)
    assert (ran.code, "2000001 characters" in one_sentence(ran)) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("attach", "s_x"), "attach"),
        (("serve", "--port", "1"), "serve"),
        (("approvals", "list"), "approvals"),
        (("sessions", "export", "s_x"), "sessions export"),
        (("export",), "export"),
        (("sessions", "prune"), "sessions prune"),
        (("runs", "show", "r_x", "--rights"), "--rights"),
    ],
)
def test_a_command_of_a_later_version_is_named_as_one(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    ran = retinue(tmp_path, *command)
    assert (ran.code, one_sentence(ran)) == (2, f"retinue: '{name}' is not in this version.")


def test_a_record_that_nothing_can_be_written_to_is_read(folder: Path) -> None:
    model = script(
        folder,
        {"agent": "parent", "text": "I ask.", "tool_calls": [call("spawn_agent", prompt="x", name="kid")]},
        *({"agent": "parent", "n": n, "text": "done"} for n in (2, 3)),
        {"agent": "child", "text": "the finding"},
    )
    assert retinue(folder, "run", "--model", model, "go").code == 0
    data = folder / ".retinue"
    child = retinue(folder, "runs", "list", "--json").document()["items"][0]
    for end in ("-wal", "-shm"):
        (data / f"retinue.sqlite3{end}").unlink()
    (data / "retinue.sqlite3").chmod(0o444)
    data.chmod(0o555)
    before = sorted(path.name for path in data.iterdir())
    try:
        for words in (
            ("sessions", "list"),
            ("sessions", "show", child["parent_id"]),
            ("runs", "list"),
            ("runs", "show", child["run_id"]),
            ("runs", "output", child["run_id"]),
            ("tree", child["parent_id"]),
        ):
            ran = retinue(folder, *words, **without_root_rights())
            assert (ran.code, ran.err, bool(ran.out)) == (0, "", True), words
        assert sorted(path.name for path in data.iterdir()) == before
    finally:
        data.chmod(0o700)


def test_what_a_crash_left_open_in_a_record_that_cannot_be_written_is_shown_with_a_note(folder: Path) -> None:
    model = script(folder, {"text": "late", "delay_ms": 3_600_000})
    with Running(folder, "run", "--model", model, "go", "--json") as running:
        running.event("step.opened")
        running.process.kill()
    (folder / ".retinue").chmod(0o555)
    try:
        ran = retinue(folder, "sessions", "list", **without_root_rights())
        assert (ran.code, "s_" in ran.out, "its process is gone" in ran.err) == (0, True, True), ran.err
    finally:
        (folder / ".retinue").chmod(0o700)


def test_a_doctor_fails_a_record_of_a_newer_version_and_says_which_files_are_missing(tmp_path: Path) -> None:
    sqlite3 = pytest.importorskip("sqlite3")
    assert retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}), "go").code == 0
    with sqlite3.connect(tmp_path / ".retinue" / "retinue.sqlite3") as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    ran = retinue(tmp_path, "doctor", "--json")
    checks = {check["check"]: check for check in ran.document()["items"]}
    assert (ran.code, checks["record"]["status"]) == (5, "fail")
    assert "Update Retinue" in checks["record"]["remedy"]
    assert checks["settings"]["detail"].count("(there is none)") == 2
    assert "no model is named" in checks["model"]["detail"]


def test_models_shows_no_address_of_another_provider(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    (tmp_path / ".retinue" / "config.toml").write_text('[connections.claude]\nkind = "anthropic"\n')
    rows = {row["name"]: row for row in retinue(tmp_path, "models", "--json").document()["items"]}
    assert (rows["claude"]["base_url"], rows["openai"]["base_url"]) == (None, "https://api.openai.com/v1")


def test_a_doctor_warns_of_a_disk_that_is_as_good_as_full(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    assert room(tmp_path / "not" / "made", lambda _: usage._replace(free=FREE_LEAST_BYTES)) == []
    (found,) = room(tmp_path / "not" / "made", lambda _: usage._replace(free=FREE_LEAST_BYTES - 1))
    assert (found.status, str(tmp_path) in found.detail, "Free some space" in found.remedy) == ("warn", True, True)


def test_the_remedy_of_a_lock_that_cannot_be_written_fits_the_cause(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "ok"})
    assert retinue(tmp_path, "run", "--model", model, "go").code == 0
    ran = retinue(tmp_path, "run", "--model", model, "go", preexec_fn=_no_file_grows)
    assert (ran.code, "owner.lock" in one_sentence(ran), "ulimit -f" in ran.err) == (5, True, True)


def _no_file_grows() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
