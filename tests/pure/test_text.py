"""safe(): nothing that a task says can steer a terminal or forge a line of a log. And numbers for people."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from timeoutq.words.text import age, compact, rate, safe

HOSTILE = [
    "\x1b[2J\x1b[H",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;http://evil/\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m",
    "line\nforged line",
    "\x00\x7f\x80\x9f\xad",
    "\u202egpj.exe\u2066\u2069\u200f",
    "\ud800 lone, \udcff\udc80 bytes",
    "\ue000 private \U000f0000 \uffff \U0010ffff",
    "\u2028\u2029\x85\xa0\u3000",
    "a" + "\u0301" * 500,
    "日本語のとても長いタイトル" * 9,
    "\u115f\u3164\u034f\ufe0f\u2800",
]


def is_harmless(text: str) -> bool:
    return all(unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for c in text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_out_printable(text: str) -> None:
    assert is_harmless(safe(text))
    assert safe(text).isprintable()


@pytest.mark.breaking
@given(st.one_of(st.text(alphabet=st.characters()), st.binary(), st.text().map(Exception)))
def test_anything_comes_out_printable_and_can_be_written(value: object) -> None:
    assert is_harmless(safe(value))
    safe(value).encode("utf-8")


@given(st.text(alphabet=st.characters()), st.integers(-2, 60))
def test_what_is_clipped_fits_its_cells(value: str, width: int) -> None:
    found = safe(value, width)
    assert cell_len(found) <= max(0, width)
    assert is_harmless(found)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("https://example.com/ä?q=1#日本", "https://example.com/ä?q=1#日本"),
        ("a\nb\tc", r"a\x0ab\x09c"),
        ("\U000e0001", r"\U000e0001"),
        (b"caf\xe9", r"caf\xe9"),
        ("caf\udce9", r"caf\xe9"),
        ("a\ufe0f\u3164\u034f", r"a\ufe0f\u3164\u034f"),
        (None, "None"),
        (ValueError("x\ny"), r"x\x0ay"),
    ],
)
def test_each_kind_is_shown_in_its_way(value: object, shown: str) -> None:
    assert safe(value) == shown


@pytest.mark.parametrize(
    ("value", "width", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("abcdefg", 0, ""),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("ab\x1bcdef", 6, "ab…"),
        ("ab\x1b", 6, r"ab\x1b"),
        (r"C:\xavier", 6, r"C:\xa…"),
    ],
)
def test_clipping_counts_cells_and_keeps_escapes_whole(value: str, width: int, shown: str) -> None:
    assert safe(value, width) == shown


def test_a_long_text_is_not_read_whole_to_be_clipped() -> None:
    assert safe("a" * 100_000_000, 5) == "aaaa…"
    assert len(safe("a" + "\u0301" * 100_000, 10)) <= 41


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "—"), (float("nan"), "—"), (-5, "-5.0 s"), (-0.01, "0.0 s"), (0, "0.0 s"), (0.44, "0.4 s"),
        (9.96, "10 s"), (59, "59 s"),
        (150, "2 min"), (3_599.9, "59 min"), (3_600, "1 h 0 m"), (7_500, "2 h 5 m"), (40_000, "11 h"),
        (4 * 86_400, "4 d"), (1e30, "99999 d"),
    ],
)  # fmt: skip
def test_ages_are_for_people(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (9_999, "10k"), (1_234_567, "1.2M"), (999_999, "1.0M"), (3.4e9, "3.4G")],
)
def test_compact_numbers(count: float, shown: str) -> None:
    assert compact(count) == shown


@pytest.mark.parametrize(
    ("per_second", "shown"),
    [(None, "—"), (0, "0"), (0.001, "0.01"), (0.02, "0.02"), (0.4, "0.4"), (12.5, "12.5"), (1200, "1.2k")],
)
def test_rates(per_second: float | None, shown: str) -> None:
    assert rate(per_second) == shown


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\u034e", "\u034e"), ("\u034f", "\\u034f"), ("\u1160", "\\u1160"), ("\u17b5", "\\u17b5"),
        ("\u180a", "\u180a"), ("\u180f", "\\u180f"), ("\u2800", "\\u2800"), ("\u3164", "\\u3164"),
        ("\ufe00", "\\ufe00"), ("\ufe0f", "\\ufe0f"), ("\ufe10", "\ufe10"), ("\uffa0", "\\uffa0"),
        # variation selectors of the supplement: 240 of them, each drawn as nothing
        ("\U000e0100", "\\U000e0100"), ("\U000e0150", "\\U000e0150"), ("\U000e01ef", "\\U000e01ef"),
        ("\U000e00ff", "\\U000e00ff"), ("\U000e01f0", "\\U000e01f0"),
    ],
)  # fmt: skip
def test_what_is_drawn_as_nothing_is_spelt_out_and_its_neighbours_are_not(character: str, shown: str) -> None:
    assert safe(f"a{character}b") == f"a{shown}b"
