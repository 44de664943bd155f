"""Which command of Scrapy runs, if one does: `scrapy shell` and its like look at single pages, and are no crawls."""

from __future__ import annotations

import sys
from typing import Any, cast

from scrapy.commands import ScrapyCommand

LOOKING = {f"scrapy.commands.{name}" for name in ("bench", "check", "fetch", "parse", "shell", "view")}
"""The modules of the commands that look at single pages, or at none of the project's."""


def running() -> tuple[ScrapyCommand | None, dict[str, Any]]:
    """Give the command of Scrapy that runs in this thread, and the spider arguments (-a) that it was given.

    Scrapy tells no other part of itself which command runs. So this looks at the functions that are being called:
    `run` of the command is one of them until the crawl is over. In a program without Scrapy's command there is none.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run" and isinstance(frame.f_locals.get("self"), ScrapyCommand):
            given = getattr(frame.f_locals.get("opts"), "spargs", None)
            return frame.f_locals["self"], cast("dict[str, Any]", given) if isinstance(given, dict) else {}
        frame = frame.f_back  # type: ignore[assignment]  # None after the outermost
    return None, {}


def looks_only(command: ScrapyCommand | None) -> str:
    """Give the name of a command that is no crawl, such as "shell"; empty for a crawl, and without a command."""
    for kind in type(command).__mro__:
        if kind.__module__ in LOOKING:
            return type(command).__module__.rpartition(".")[2]
    return ""
