"""Cutting and cleaning: whole characters, the longest prefix, always marked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.text import CUT_MARK, clean, estimate_tokens, fit_bytes, fit_chars, fit_tokens

WIDE = st.text(st.sampled_from("aé漢🧭 \n"), max_size=60)


@given(WIDE)
def test_an_estimate_is_a_third_of_the_bytes_rounded_up(text: str) -> None:
    assert (estimate_tokens(text) - 1) * 3 < len(text.encode()) <= estimate_tokens(text) * 3


@given(WIDE, st.integers(0, 60))
def test_a_token_limit_keeps_the_longest_fitting_prefix_and_says_so(text: str, tokens_max: int) -> None:
    shown, cut = fit_tokens(text, tokens_max)
    fitting = [text[:end] for end in range(len(text) + 1) if estimate_tokens(text[:end]) <= tokens_max]
    assert cut == (estimate_tokens(text) > tokens_max)
    assert shown == (max(fitting, key=len) + CUT_MARK if cut else text)


def test_without_a_token_limit_nothing_is_cut() -> None:
    assert fit_tokens("x" * 100_000, None) == ("x" * 100_000, False)


@given(WIDE, st.integers(0, 80))
def test_a_byte_limit_holds_with_its_mark_and_splits_no_character(text: str, bytes_max: int) -> None:
    shown = fit_bytes(text, bytes_max)
    if len(text.encode()) <= bytes_max:
        assert shown == text
        return
    room = bytes_max - len(CUT_MARK.encode())
    assert shown.endswith(CUT_MARK)
    head = shown.removesuffix(CUT_MARK)
    assert text.startswith(head)
    assert len(head.encode()) <= max(0, room)
    longer = text[: len(head) + 1]
    assert len(longer.encode()) > room, "the longest prefix that fits"


@given(WIDE, st.none() | st.integers(0, 80))
def test_a_character_limit_counts_characters(text: str, chars_max: int | None) -> None:
    shown, cut = fit_chars(text, chars_max)
    assert shown == (text if chars_max is None else "".join(list(text)[:chars_max]))
    assert cut == (shown != text)


@given(st.text(st.characters(categories=("L", "Cs", "So")), max_size=20))
def test_clean_text_can_be_stored_and_whole_text_is_left_alone(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()
    assert (cleaned == text) == (not any(0xD800 <= ord(char) <= 0xDFFF for char in text))


@pytest.mark.parametrize(
    ("broken", "mended"),
    [("a\ud800b", "a\ufffdb"), ("\udc80", "\ufffd"), ("\ud83e\udded", "🧭"), ("plain 漢", "plain 漢")],
)
def test_lone_surrogates_become_replacement_characters_and_pairs_their_character(broken: str, mended: str) -> None:
    assert clean(broken) == mended
