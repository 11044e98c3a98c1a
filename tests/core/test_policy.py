"""The policy: CONTRACT's table, what each switch takes as text and as a value, what is refused, what is stored."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import RetinueError
from retinue.core.policy import (
    DEFAULTS,
    KEYS,
    NAMES,
    NUMBER_MAX,
    Key,
    Policy,
    named,
    show,
    stored,
    with_changes,
)

MODES = ["none", "selected", "last_n_turns", "summary", "fork"]
SETS = {"rights.context_modes": MODES, "rights.delegating_profiles": ["build", "plan", "ask"]}
FREE = [key for key in KEYS.values() if key.settable]
HONOURED = [key for key in FREE if key.honoured is None]
NOT_YET = [key for key in FREE if key.honoured is not None]


def rows() -> dict[str, list[str]]:
    """CONTRACT section 3, one list of cells a key: its values, then the five columns."""
    found: dict[str, list[str]] = {}
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    table = page.partition("| key | values |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        group = cells[0].partition(".")[0]
        keys = [name if "." in name else f"{group}.{name}" for name in cells[0].split(", ")]
        for place, key in enumerate(keys):
            found[key] = [cells[1], *(_share(cell, place, len(keys)) for cell in cells[2:])]
    return found


def _share(cell: str, place: int, keys: int) -> str:
    """Two switches of one row share its cells, or say one word for both."""
    shares = cell.split(", ")
    return shares[place] if keys > 1 and len(shares) == keys else cell


def value_of(key: str, cell: str, standard: str) -> Any:
    cell = standard if cell == "\N{EN DASH}" else cell
    if key in SETS:
        known = {"all": SETS[key], "all but fork": MODES[:-1]}
        return known.get(cell) or cell.split(", ")
    if cell.startswith("["):
        return [int(number) for number in cell.strip("[]").split(", ")]
    words: dict[str, Any] = {"none": None, "true": True, "false": False}
    if KEYS[key].kind == "choice":
        words = {}
    return words.get(cell, int(cell) if cell.isdigit() else cell)


@pytest.mark.parametrize("column", range(5), ids=NAMES)
def test_the_five_columns_are_those_of_the_contract(column: int) -> None:
    expected = {key: value_of(key, cells[1 + column], cells[1]) for key, cells in rows().items()}
    shown = Policy(name=NAMES[column]).values()
    assert shown == expected
    assert {key: type(value) for key, value in shown.items()} == {key: type(v) for key, v in expected.items()}


def test_the_choices_are_those_of_the_contract() -> None:
    for key, cells in rows().items():
        if KEYS[key].kind == "choice":
            written = re.split(";|:| on | for ", cells[0])[0]
            assert list(KEYS[key].choices) == written.split(" / "), key


@pytest.mark.parametrize("name", NAMES)
def test_each_of_the_five_policies_can_be_chosen_with_all_its_values(name: str) -> None:
    assert named(name) == Policy(name=name)
    assert named(name).values() == Policy(name=name).values()
    assert stored(named(name).to_dict()) == named(name)


@pytest.mark.parametrize("name", ["Standard", "", "couriers"])
def test_a_policy_of_another_name_is_refused(name: str) -> None:
    assert refused(lambda: named(name)) == "invalid"


def refused(call: Any) -> str:
    with pytest.raises(RetinueError) as caught:
        call()
    assert caught.value.hint
    return caught.value.code


def legal(key: Key) -> st.SearchStrategy[Any]:
    """Every value the switch takes, as a program gives it."""
    if key.kind == "number":
        return st.none() | st.integers(key.least, NUMBER_MAX)
    if key.kind == "bool":
        return st.booleans()
    if key.kind == "choice":
        return st.sampled_from(key.choices)
    if key.kind == "wait":
        rising = st.lists(st.integers(1, NUMBER_MAX), min_size=3, max_size=3)
        return rising.map(lambda numbers: tuple(sorted(numbers)))
    ordered = st.sets(st.sampled_from(key.choices), min_size=1)
    return ordered.map(lambda chosen: tuple(choice for choice in key.choices if choice in chosen))


@given(data=st.data(), key=st.sampled_from(HONOURED))
def test_a_legal_value_means_the_same_as_text_and_as_a_value(data: st.DataObject, key: Key) -> None:
    value = data.draw(legal(key))
    text = show(value)
    for form in (value, text, f" {text} " if key.kind != "choice" else text):
        policy = with_changes(Policy(), {key.name: form})
        assert policy[key.name] == value
        assert type(policy[key.name]) is type(value)
    as_list = list(value) if isinstance(value, tuple) else value
    assert with_changes(Policy(), {key.name: as_list})[key.name] == value


@given(data=st.data(), key=st.sampled_from(NOT_YET))
def test_a_value_no_code_honours_is_refused_and_never_ignored(data: st.DataObject, key: Key) -> None:
    value = data.draw(legal(key))
    if value == key.columns[0]:
        assert with_changes(Policy(), {key.name: value})[key.name] == value
    else:
        assert refused(lambda: with_changes(Policy(), {key.name: value})) == "unsupported"


def test_every_switch_that_may_be_set_is_read_somewhere(repository: Path) -> None:
    package = repository / "src" / "retinue"
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.parts[-2:] != ("core", "policy.py")
    )
    assert [key.name for key in HONOURED if f'"{key.name}"' not in code] == []


ILLEGAL: dict[str, list[Any]] = {
    "number": [-1, "-1", 1.5, "1.5", "", "many", True, "true", [], {}, "²", "٣", "1_0", NUMBER_MAX + 1, "9" * 5000],
    "bool": [None, "none", 0, 1, "yes", "", [], {}],
    "choice": [None, "", "no_such", 0, True, [], ["queue"], {}],
    "modes": [None, "", "no_such", "none,no_such", 0, [None], {}],
    "profiles": [None, "", "no_such", "build,", "build;plan", 0, ["build", 1], {}],
    "wait": [
        None,
        "none",
        30,
        "30",
        "1,2",
        "1,2,3,4",
        "3,2,1",
        "0,1,2",
        [0, 1, 2],
        [1, 2],
        [1, 2, 3, "x"],
        [True, 2, 3],
        [1.0, 2, 3],
        "²,3,4",
        "1,2," + "9" * 5000,
        [1, 2, NUMBER_MAX + 1],
        {},
    ],
}


@pytest.mark.parametrize("key", FREE, ids=lambda key: key.name)
def test_an_illegal_value_is_refused_with_what_the_switch_takes(key: Key) -> None:
    zero = [0, "0"] if key.least == 1 else []
    for raw in [*ILLEGAL[key.kind], *zero]:
        assert refused(lambda raw=raw: with_changes(Policy(), {key.name: raw})) == "invalid", raw


def test_an_unknown_switch_is_refused() -> None:
    assert refused(lambda: with_changes(Policy(), {"caps.running.roots": 2})) == "invalid"


def test_S6_the_safety_cap_cannot_be_changed_through_settings_only_in_code() -> None:
    changes = {"caps.created.root_run": 65}
    assert refused(lambda: with_changes(Policy(), changes)) == "invalid"
    assert with_changes(Policy(), changes, in_code=True)["caps.created.root_run"] == 65


@given(st.data())
def test_a_stored_policy_comes_back_exactly_as_it_was(data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from(HONOURED), unique_by=lambda key: key.name, max_size=5))
    policy = with_changes(Policy(), {key.name: data.draw(legal(key)) for key in keys})
    assert stored(policy.to_dict()) == policy
    assert policy.values().keys() == KEYS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_policy_keeps_its_column_and_later_changes_lie_on_top(name: str) -> None:
    policy = stored({"name": name, "set": {"caps.running.root": 2}})
    assert policy["caps.running.root"] == 2
    assert policy["caps.max_depth"] == DEFAULTS[name]["caps.max_depth"]
    later = with_changes(policy, {"caps.max_depth": 2, "caps.running.root": "none"})
    assert (later.name, later["caps.max_depth"], later["caps.running.root"]) == (name, 2, None)
    assert policy["caps.running.root"] == 2, "the first one is as it was"


def test_asking_for_an_unknown_switch_is_a_fault() -> None:
    with pytest.raises(KeyError):
        Policy()["no.such"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "none"), (True, "true"), (False, "false"), (3, "3"), ("queue", "queue"), ((1, 30, 60), "1,30,60")],
)
def test_values_are_shown_as_a_person_writes_them(value: Any, shown: str) -> None:
    assert show(value) == shown


def test_a_numeric_switch_is_a_number_or_no_limit() -> None:
    assert (Policy().number("caps.running.process"), Policy().number("caps.running.parent")) == (8, None)
