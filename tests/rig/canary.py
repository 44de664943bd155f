"""A password that no output of the tests may show, and the eyes that look for it."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

PASSWORD = os.environ.get("CANARY", "canary-7f3a91c4e8d2")
_BYTES = PASSWORD.encode()
_LARGEST = 64 * 1024 * 1024

_seen: list[str] = []
_watching = False
_hooked = False
_communicate: Any = subprocess.Popen.communicate
_readouterr: Any = pytest.CaptureFixture.readouterr


def holds(said: object) -> bool:
    return _BYTES in said if isinstance(said, bytes | bytearray) else PASSWORD in str(said)


def look(said: object, where: str) -> None:
    """Look at an output of the product; what is found fails the test that runs."""
    if said is not None and holds(said):
        _seen.append(where)


def watch() -> None:
    """Look at whatever tests read of programs and of captured output, and at the arguments of programs."""
    global _watching, _hooked
    _watching = True
    if not _hooked:
        sys.addaudithook(_on_event)  # there is no taking it away
        _hooked = True
    subprocess.Popen.communicate = _watched_communicate  # type: ignore[method-assign]  # what tests read passes here
    pytest.CaptureFixture.readouterr = _watched_readouterr  # type: ignore[method-assign]  # and here


def unwatch() -> None:
    global _watching
    _watching = False
    subprocess.Popen.communicate = _communicate  # type: ignore[method-assign]  # as it was
    pytest.CaptureFixture.readouterr = _readouterr  # type: ignore[method-assign]  # as it was


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
        words = arguments if event == "os.system" else arguments[1]  # not the environment, which others cannot read
        look(repr(words), "the arguments of a program, which ps shows")


def _watched_communicate(self: Any, *words: Any, **settings: Any) -> Any:
    said = _communicate(self, *words, **settings)
    for part, where in zip(said, ("output", "errors"), strict=True):
        look(part, f"the {where} of the program {str(self.args)[:200]}")
    return said


def _watched_readouterr(self: Any) -> Any:
    said = _readouterr(self)
    for part, where in zip(said, ("output", "errors"), strict=True):
        look(part, f"the captured {where}")
    return said


def seen(sections: Iterable[tuple[str, str]], folder: Path | None) -> list[str]:
    """Tell where the canary was seen since this was last asked: by `look()`, in sections of a report, in files."""
    found = _seen[:]
    _seen.clear()
    found += [name for name, text in sections if holds(text)]
    if folder is not None and folder.is_dir():
        found += [f"the file {path.name}" for path in sorted(folder.rglob("*")) if _file_holds(path)]
    return found


def _file_holds(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size < _LARGEST and holds(path.read_bytes())
    except OSError:
        return False  # it went away meanwhile, or is no file to read


def told(error: BaseException) -> str:
    """Give all that an error can tell anyone: its text, its repr, its arguments, and those of all errors behind it.

    With what `raise … from None` hides in tracebacks, for tools that show it all the same.
    """
    said: list[str] = ["".join(traceback.format_exception(error))]
    todo: list[BaseException | None] = [error]
    known: set[int] = set()
    while todo:
        one = todo.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        said += [str(one), repr(one), repr(one.args), repr(getattr(one, "__notes__", "")), repr(vars(one))]
        todo += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            todo += one.exceptions
    return "\n".join(said)
