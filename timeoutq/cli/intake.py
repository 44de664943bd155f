"""What `timeoutq put` makes of URLs on their way in: one form for each, pages of sitemaps, groups; and what it refuses.

What is refused is told on stderr, each with its place and its reason, and the rest goes on.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from timeoutq.cli.app import say, stop
from timeoutq.cli.command import Seconds
from timeoutq.cli.reading import LONGEST_LINE, bare_line
from timeoutq.words.arguments import shown
from timeoutq.words.errors import BadUrl, InvalidInput
from timeoutq.words.exit_codes import USAGE
from timeoutq.words.model import Task, raw, text
from timeoutq.words.text import counted, safe

if TYPE_CHECKING:
    from timeoutq.urls import Limits

OWNER = "scrapy_spider"
"""The setting of a queue that says which spider of Scrapy has made the queue."""
TOLD = 10
"""How many URLs are named that are not in the spider's form; all are counted."""

_COMMENT = re.compile(rb"(?:\A|[ \t])#.*", re.DOTALL)


class By(StrEnum):
    """What tasks are grouped by."""

    host = "host"
    domain = "domain"


@dataclass
class Intake:
    """How tasks are taken in, and how many were refused."""

    urls: bool = False
    """Whether ids are URLs, which get their one form."""
    by: By | None = None
    lenient: bool = False
    refused: int = 0
    sitemaps: int = 0
    """How many of those were sitemaps."""
    tell: Callable[[str], None] = say
    """Prints a line on stderr."""
    is_within: bool = False
    """Whether what was read last is the beginning of a line that is too long."""
    spider: str | None = None
    """The spider that owns the queue: the URLs of its tasks are in Scrapy's form."""
    domain: Callable[[str], str] | None = None
    """Gives the domain of a URL; None: by the public suffix list of this machine."""
    unlike: int = 0
    """How many URLs are in another form."""

    def check(self) -> None:
        """Raise `InvalidInput` for options that do not go together, and `MissingExtra` if a package is missing."""
        if self.lenient and not self.is_needed:
            raise InvalidInput("--lenient goes with --urls, --sitemap or --group-by: nothing else refuses single lines")
        if self.is_needed:
            import_module("timeoutq.urls")  # it says which package is missing

    @property
    def is_needed(self) -> bool:
        """Whether an option asks for what this module does."""
        return self.urls or self.by is not None

    def refuse(self, where: str, error: InvalidInput) -> None:
        """Count and tell what is left out."""
        self.refused += 1
        self.sitemaps += not isinstance(error, BadUrl)
        said = error.words if isinstance(error, BadUrl) else str(error)
        self.tell(f"{where}: {said}" if where else said)

    def line(self, line: bytes, number: int) -> bytes | None:
        """Give the URL in a line of a file, without blanks, byte order mark and comment; None if the line has no URL.

        A # at the beginning of the line or after a blank begins a comment; elsewhere it begins a fragment. `number`
        counts lines from 1. A line that is too long, or that holds a CR inside, is given as it is, as far as it was
        read: `take` refuses it. Raises `InvalidInput`, which names the line, for UTF-16.
        """
        is_end = line.endswith(b"\n")
        if self.is_within:
            self.is_within = not is_end
            return None
        if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidInput("line 1: the file is UTF-16: save it as UTF-8")
        if len(line) >= LONGEST_LINE:
            self.is_within = not is_end
            return line
        bare = bare_line(line, number)
        return bare if b"\r" in bare else bare_line(_COMMENT.sub(b"", bare), 0) or None

    def take(self, task: bytes | Task, where: str) -> bytes | Task | None:
        """Give a task as it is put; None if it is refused."""
        if not self.is_needed:
            return task
        from timeoutq.urls import domain, host, normalise
        from timeoutq.urls.normal import LONGEST_URL

        id = text(task) if isinstance(task, bytes) else task.task
        try:
            if len(id) > LONGEST_URL:
                raise BadUrl(shown(id), url=id, reason=f"it has more than {LONGEST_URL:,} characters")
            if "\r" in id:
                reason = "it holds a CR (carriage return): end each line with LF or with CRLF"
                raise BadUrl(shown(id), url=id, reason=reason)
            if "\t" in id:
                raise BadUrl(id, url=id, reason="it holds a tab; a line holds a URL and nothing else")
            if self.urls:
                id = normalise(id)
            group = (self.domain or domain)(id) if self.by is By.domain else None
            if self.by is By.host:
                host(id)  # which the queue finds by itself: what is no URL has none, and is refused
        except BadUrl as error:
            self.refuse(where, error)
            return None
        if isinstance(task, Task):
            return replace(task, task=id, group=task.group or group)
        return raw(id) if group is None else Task(id, group=group)

    def compare(self, tasks: Iterable[str | bytes | Task]) -> None:
        """Warn of URLs that are not in the form in which the spider that owns the queue writes them.

        The form is that of the package w3lib, which comes with Scrapy; without the package, nobody is warned.
        """
        if self.spider is None or find_spec("w3lib") is None:
            return
        from w3lib.url import canonicalize_url

        for task in tasks:
            id = text(task) if isinstance(task, bytes) else task.task if isinstance(task, Task) else task
            # a mark in the fragment, as in #POST:1f0c…, is the spider's own
            if "://" in id and ":" not in id.partition("#")[2]:
                with suppress(ValueError):  # what is no URL has no form
                    self._compare(id, canonicalize_url(id))

    def _compare(self, id: str, form: str) -> None:
        self.unlike += id != form
        if id != form and self.unlike <= TOLD:
            self.tell(
                f"{shown(id, 300)} is put as it stands, but spider {self.spider} writes this URL as {form}: put that "
                "form, or the page is fetched twice"
            )

    def end(self) -> None:
        """End the command with exit code 2 if something was refused, unless --lenient was given."""
        if self.unlike > TOLD:
            say(f"{self.unlike:,} URLs in all are not in the form in which spider {self.spider} writes them")
        if self.refused and not self.lenient:
            stop(USAGE, f"{self.words()}; all others were put (--lenient: exit code 0)")

    def words(self) -> str:
        """Say how much was refused."""
        what = [(self.refused - self.sitemaps, "URL"), (self.sitemaps, "sitemap")]
        words = " and ".join(counted(count, noun) for count, noun in what if count)
        return f"{words} {'was' if self.refused == 1 else 'were'} refused"


@dataclass(frozen=True)
class Sitemaps:
    """The sitemaps that a command names."""

    sources: Annotated[
        list[str] | None,
        "--sitemap URL|FILE: Put the pages of a sitemap, an index or a robots.txt; may be given again.",
    ] = None
    keep_data: Annotated[
        bool, "--sitemap-data: Payload: what the sitemap says in lastmod, changefreq and priority."
    ] = False
    max_urls: Annotated[int | None, "N 1..: The most URLs from each --sitemap (default: 10,000,000)."] = None
    max_time: Annotated[Seconds | None, "The longest time for each --sitemap (default: 1h)."] = None

    @property
    def limits(self) -> Limits:
        """Give the limits of reading, which hold for each of the sitemaps that are named."""
        from timeoutq.urls import Limits

        given: dict[str, Any] = {"pages": self.max_urls, "total_seconds": self.max_time}
        return replace(Limits(), **{name: value for name, value in given.items() if value is not None})

    def tasks(self, intake: Intake, payload: Any) -> Iterator[bytes | Task]:
        """Give the pages of all sitemaps as tasks."""
        from timeoutq.urls import sitemap

        for source in self.sources or ():
            for page in sitemap(source, limits=self.limits, refused=intake.refuse):
                body = dict(page.data) or None if self.keep_data else payload
                task = page.url.encode() if body is None else Task(page.url, body)
                taken = intake.take(task, page.where)
                if taken is not None:
                    yield taken

    def check(self, payload: Any, given: bool) -> None:
        """Raise `InvalidInput` for options that do not go together; `given` says whether tasks come from elsewhere."""
        if not self.sources:
            options = {"--sitemap-data": self.keep_data, "--max-urls": self.max_urls, "--max-time": self.max_time}
            if wrong := [name for name, value in options.items() if value]:
                raise InvalidInput(f"{wrong[0]} goes with --sitemap")
        elif given:
            raise InvalidInput("give --sitemap, or tasks, or --file, not several of them")
        elif self.keep_data and payload is not None:
            raise InvalidInput("give --payload or --sitemap-data, not both")


def voice(progress: Any) -> Callable[[str], None]:
    """Give a function that prints a line on stderr, above the progress bar."""
    from rich.text import Text

    console = progress.console
    return lambda message: console.print(Text(f"timeoutq: {safe(message)}"), soft_wrap=True)


def place(path: Path | None) -> str:
    """Name a file; None is standard input."""
    return "standard input" if path is None or str(path) == "-" else str(path)
