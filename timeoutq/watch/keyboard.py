"""Reads single keys from a terminal, by name: `a`, `A`, `up`, `enter`, `esc`. `live.py` opens the terminal with it."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from typing import Any

SEQUENCES = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b[C": "right", b"\x1bOC": "right",
    b"\x1b[D": "left", b"\x1bOD": "left", b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home",
    b"\x1bOH": "home", b"\x1b[1~": "home", b"\x1b[F": "end", b"\x1bOF": "end", b"\x1b[4~": "end",
}  # fmt: skip
"""What terminals send for keys that have no character."""

PLAIN = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x04": "q", "\t": "tab"}

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~])")
_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")


def keys_of(typed: bytes) -> tuple[list[str], bytes]:
    """Name the keys in what a terminal sent; also give the end that may be the beginning of one more key.

    What is no key of ours, such as the answer of a terminal to a question, is left out.
    """
    found: list[str] = []
    while typed:
        if typed[0] == 0x1B:
            if sequence := _SEQUENCE.match(typed):
                found += [SEQUENCES[sequence[0]]] if sequence[0] in SEQUENCES else []
                typed = typed[sequence.end() :]
                continue
            if _BEGUN.match(typed):
                return found, typed
            found.append("esc")
            typed = typed[1:]
            continue
        size = 1 if typed[0] < 0xC0 else 2 if typed[0] < 0xE0 else 3 if typed[0] < 0xF0 else 4
        if len(typed) < size and all(0x80 <= byte < 0xC0 for byte in typed[1:]):
            return found, typed
        try:
            character = typed[:size].decode()
        except UnicodeDecodeError:
            character, size = "", 1
        typed = typed[size:]
        if character in PLAIN:
            found.append(PLAIN[character])
        elif character and character.isprintable():
            found.append(character)
    return found, b""


class Keyboard:
    """Reads single keys from a terminal, without echo, and puts it back as it was."""

    def __enter__(self) -> Keyboard:
        self._old: list[Any] | None = None
        self._begun = b""
        if sys.platform != "win32" and sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._old = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if sys.platform != "win32" and self._old is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._old)

    def wait(self, seconds: float) -> list[str]:
        """Give the keys that were typed within that time."""
        if self._old is None:
            time.sleep(seconds)
            return []
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        if not ready:
            # the rest of a sequence comes at once: an escape that stands alone is the key
            found, self._begun = ["esc"] if self._begun[:1] == b"\x1b" else [], b""
            return found
        typed = os.read(sys.stdin.fileno(), 1024)
        if not typed:  # ready, and yet nothing to read: the terminal is gone
            return ["q"]
        found, self._begun = keys_of(self._begun + typed)
        return found
