"""Chromium in tests: the one of this machine, driven by playwright; it tells of everything that should not happen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str:
    """Give the path of Chromium; the test is skipped where there is none, or no playwright."""
    pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    return found


def axe() -> str:
    """Give the text of axe-core; the test is skipped where npm has not installed it."""
    here = Path(__file__).resolve()
    places = [*os.environ.get("NODE_PATH", "").split(os.pathsep), *(str(one / "node_modules") for one in here.parents)]
    for place in places:
        path = Path(place) / "axe-core" / "axe.min.js"
        if place and path.is_file():
            return path.read_text("utf-8")
    pytest.skip("no axe-core: npm install axe-core, and say in NODE_PATH where node_modules is")


class Watched:
    """A tab of the browser that notes dialogs, errors, and reports of the content security policy."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.on("dialog", self._on_dialog)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("requestfailed", self._on_failed)
        page.add_init_script(
            "window.addEventListener('securitypolicyviolation', e => console.error('CSP: ' + e.violatedDirective))"
        )

    def _on_dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def _on_failed(self, request: Any) -> None:
        # a stream ends when its page is left, and so does the load of the icon, which a page does not wait for
        left = request.url.endswith("/static/icon.svg") and request.failure == "net::ERR_ABORTED"
        if "/live" not in request.url and not left:
            self.wrong.append(f"not loaded: {request.url} {request.failure}")


@contextmanager
def browser() -> Iterator[Any]:
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


@contextmanager
def tab(
    started: Any, *, width: int = 1280, height: int = 860, dark: bool = False, scripts: bool = True
) -> Iterator[Watched]:
    """Open a tab with a profile of its own."""
    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
        java_script_enabled=scripts, reduced_motion="reduce",
    )  # fmt: skip
    context.set_default_timeout(10_000)
    try:
        yield Watched(context.new_page())
    finally:
        context.close()
