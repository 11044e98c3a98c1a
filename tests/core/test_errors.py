"""The closed list of refusals: SHAPES' codes and statuses, and the two bodies that doors and models get."""

import re

import pytest

from retinue.core.errors import MEANING_OF, STATUS_OF, RetinueError, not_found

# SHAPES, Errors, word for word.
LIST = """
`not_found` 404 · `invalid` 422 · `depth_exceeded` 409 · `cap_running` 429 · `cap_created` 429 · `cap_rounds` 429 ·
`cap_messages` 429 · `switched_off` 409 · `not_continuable` 409 · `already_ended` 409 · `turn_open` 409 · `denied` 403 ·
`denied_hook` 403 · `approval_expired` 403 · `outside_workspace` 403 · `no_claim` 403 · `file_claimed` 409 ·
`file_changed` 409 · `unknown_agent` 404 · `broken_agent` 422 · `unknown_model` 422 · `unknown_tool` 422 ·
`unsupported` 422 · `budget_exceeded` 402 · `store_failed` 503 · `store_owned` 503 · `stopping` 503 ·
`unauthorized` 401 · `forbidden_origin` 403 · `too_large` 413.
"""
SHAPES = {code: int(status) for code, status in re.findall(r"`(\w+)` (\d{3})", LIST)}


def test_the_codes_and_statuses_are_those_of_the_contract() -> None:
    assert SHAPES == STATUS_OF


def test_every_code_has_a_meaning_and_a_way_out() -> None:
    assert set(MEANING_OF) == set(SHAPES)
    assert all(meaning and hint for meaning, hint in MEANING_OF.values())


@pytest.mark.parametrize("code", SHAPES)
def test_a_refusal_has_one_body_for_doors_and_one_for_models(code: str) -> None:
    error = RetinueError(code, "It is so.", "Do that.")
    assert error.to_dict() == {
        "type": "about:blank",
        "title": code.replace("_", " "),
        "status": SHAPES[code],
        "detail": "It is so.",
        "code": code,
        "hint": "Do that.",
    }
    assert error.to_model() == {"error": {"code": code, "message": "It is so.", "hint": "Do that."}}
    assert str(error) == f"{code}: It is so."


def test_a_hint_may_be_missing_but_a_code_must_be_known() -> None:
    assert RetinueError("invalid", "It is so.").hint == ""
    with pytest.raises(KeyError):
        RetinueError("no_such_code", "It is so.")


def test_unknown_and_foreign_ids_get_the_same_answer() -> None:
    assert not_found("run", "r_1").to_dict() == not_found("run", "r_1").to_dict()
    assert not_found("run", "r_1").status == 404
    assert "'r_1'" in not_found("run", "r_1").detail
