"""The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps."""

from __future__ import annotations

import base64
import codecs
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from timeoutq.cli.app import new_words, patiently, say, stop
from timeoutq.cli.command import FIVE_MINUTES, Ids, Moment, Name, Seconds, Server, Shards, Wait, command
from timeoutq.cli.printing import Sink, progress
from timeoutq.cli.reading import LONGEST_LINE, bare_line, lines_of, piped_in, place, read_json, read_option
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import AccessDenied, BadUrl, InvalidInput
from timeoutq.words.exit_codes import USAGE
from timeoutq.words.model import Outcome, State, Task, raw, text
from timeoutq.words.text import counted

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue

OWNER = "scrapy_spider"  # the setting of a queue that says which spider of Scrapy has made the queue
TOLD = 10  # how many URLs are named that are not in the spider's form; all are counted

_COMMENT = re.compile(rb"(?:\A|[ \t])#.*", re.DOTALL)


class By(StrEnum):
    """What tasks are grouped by."""

    host = "host"
    domain = "domain"


@dataclass
class Intake:
    """How tasks are taken in, and how many were refused."""

    urls: bool = False  # whether ids are URLs, which get their one form
    by: By | None = None
    lenient: bool = False
    refused: Counter[str] = field(default_factory=Counter[str])  # URLs and sitemaps
    spider: str | None = None  # the spider of Scrapy that owns the queue
    domain: Callable[[str], str] | None = None
    """Gives the domain of a URL; None: by the public suffix list of this machine."""
    unlike: int = 0  # how many URLs the spider writes in another form

    def check(self) -> None:
        """Raise `InvalidInput` for options that do not go together, and `MissingExtra` if a package is missing."""
        if self.lenient and not self.is_needed:
            raise InvalidInput("--lenient goes with --urls, --sitemap or --group-by: nothing else refuses single lines")
        if self.is_needed:
            import_module("timeoutq.urls")  # it says which package is missing

    @property
    def is_needed(self) -> bool:
        """Whether tasks are URLs."""
        return self.urls or self.by is not None

    def refuse(self, where: str, error: InvalidInput) -> None:
        """Count and tell what is left out."""
        is_url = isinstance(error, BadUrl)
        self.refused["URL" if is_url else "sitemap"] += 1
        said = error.words if isinstance(error, BadUrl) else str(error)
        say(f"{where}: {said}" if where else said)

    def line(self, line: bytes, number: int) -> bytes | None:
        """Give the URL in a line of a file, without blanks, byte order mark and comment; None if the line has no URL.

        A # at the beginning of the line or after a blank begins a comment; elsewhere it begins a fragment. `take`
        refuses a line that is too long, or that holds a CR inside.
        """
        if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InvalidInput("line 1: the file is UTF-16: save it as UTF-8")
        bare = bare_line(line, number)
        return bare if b"\r" in bare else bare_line(_COMMENT.sub(b"", bare), 0) or None

    def take(self, task: bytes | Task, where: str) -> bytes | Task | None:
        """Give a task as it is put; None if it is refused."""
        if not self.is_needed:
            return task
        from timeoutq.urls import domain, host, normalise
        from timeoutq.urls.normal import LONGEST_URL

        id = text(task) if isinstance(task, bytes) else task.task
        wrong = {
            f"it has more than {LONGEST_URL:,} characters": len(id) > LONGEST_URL,
            "it holds a CR (carriage return): end each line with LF or with CRLF": "\r" in id,
            "it holds a tab; a line holds a URL and nothing else": "\t" in id,
        }
        try:
            if reason := next((reason for reason, holds in wrong.items() if holds), ""):
                raise BadUrl(shown(id), url=id, reason=reason)
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
            id = form = text(task) if isinstance(task, bytes) else task.task if isinstance(task, Task) else task
            # a mark in the fragment, as in #POST:1f0c…, is the spider's own
            if "://" in id and ":" not in id.partition("#")[2]:
                with suppress(ValueError):  # what is no URL has no form
                    form = canonicalize_url(id)
            self.unlike += id != form
            if id != form and self.unlike <= TOLD:
                say(
                    f"{shown(id, 300)} is put as it stands, but spider {self.spider} writes this URL as {form}: put "
                    "that form, or the page is fetched twice"
                )

    def end(self) -> None:
        """End the command with exit code 2 if something was refused, unless --lenient was given."""
        if self.unlike > TOLD:
            say(f"{self.unlike:,} URLs in all are not in the form in which spider {self.spider} writes them")
        many = self.refused.total()
        if many and not self.lenient:
            words = " and ".join(counted(self.refused[noun], noun) for noun in ("URL", "sitemap") if self.refused[noun])
            were = "was" if many == 1 else "were"
            stop(USAGE, f"{words} {were} refused; all others were put (--lenient: exit code 0)")


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

    def tasks(self, intake: Intake, payload: Any) -> Iterator[tuple[int, bytes | Task]]:
        """Give the pages of all sitemaps as tasks, and 0 for the bytes that were read."""
        from timeoutq.urls import Limits, sitemap

        given: dict[str, Any] = {"pages": self.max_urls, "total_seconds": self.max_time}
        limits = replace(Limits(), **{name: value for name, value in given.items() if value is not None})
        for source in self.sources or ():
            for page in sitemap(source, limits=limits, refused=intake.refuse):
                body = dict(page.data) or None if self.keep_data else payload
                taken = intake.take(page.url.encode() if body is None else Task(page.url, body), page.where)
                if taken is not None:
                    yield 0, taken

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


CHUNK = 5000
CHUNK_BYTES = 4 * 1024 * 1024
GATHERING = 1.0  # how long the pages of slow sitemaps gather before they are put, seconds
KEYS = ("task", "payload", "group", "priority", "improve", "rerun")  # what a line of --jsonl may say


def _read_line(line: bytes, number: int, as_jsonl: bool, payload: Any) -> bytes | Task | None:
    bare = bare_line(line, number)
    if not bare:
        return None
    try:
        if len(line) >= LONGEST_LINE:
            raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
        if as_jsonl:
            return _read_jsonl(bare)
        id = arguments.task_id(bare)
        return id if payload is None else Task(id, payload)
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from error


def _read_jsonl(line: bytes) -> Task:
    try:
        found = read_json(line)
    except ValueError as error:
        raise InvalidInput(f"not JSON: {error}") from error
    if not isinstance(found, dict) or "task" not in found:
        raise InvalidInput('not an object with "task"')
    fields = cast("dict[str, Any]", found)
    if unknown := sorted(fields.keys() - set(KEYS)):
        raise InvalidInput(f"unknown key {unknown[0]!r:.60}: a line has {', '.join(KEYS)}")
    id, group, priority = fields["task"], fields.get("group"), fields.get("priority")
    if isinstance(id, dict) and list(cast("dict[str, Any]", id)) == ["b64"]:  # as over HTTP
        try:
            id = base64.b64decode(cast("dict[str, Any]", id)["b64"], validate=True)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the id is not base64: {error}") from None
    task = arguments.task_id(cast("object", id))
    arguments.pack(fields.get("payload"), task)
    if group is not None:
        arguments.host(group)
    improve, rerun = (bool(arguments.flag(fields.get(name, False), name)) for name in ("improve", "rerun"))
    if priority is not None:
        arguments.priority(priority)
    elif improve:
        raise InvalidInput('"improve" compares priorities: add "priority" to the line')
    return Task(task, fields.get("payload"), group, priority=priority, improve=improve, rerun=rerun)


@dataclass(frozen=True)
class Source:
    """Where many tasks come from."""

    path: Annotated[Path | None, "--file -f: File of ids, one per line; blanks around an id are cut; - is stdin."] = (
        None
    )
    as_jsonl: Annotated[
        bool, '--jsonl: Lines are JSON: {"task": …}, or with "payload", "group", "priority", "improve", "rerun", too.'
    ] = False
    payload: Annotated[str | None, "JSON that goes with each task."] = None

    def body(self) -> Any:
        """Read --payload. Raises `InvalidInput`."""
        if self.payload is None:
            return None
        if self.as_jsonl:
            raise InvalidInput("give --payload or --jsonl, whose lines have their own, not both")
        return read_option("--payload", self.payload)

    def tasks(self, intake: Intake, payload: Any) -> Iterator[tuple[int, bytes | Task]]:
        """Give the tasks of a file or of stdin, each with the length of its line in bytes."""
        for number, line in enumerate(lines_of(self.path), 1):
            if intake.urls and not self.as_jsonl:
                bare = intake.line(line, number)
                found = bare if bare is None or payload is None else Task(bare, payload)
            else:
                found = _read_line(line, number, self.as_jsonl, payload)
            if found is not None and intake.is_needed:
                found = intake.take(found, f"{place(self.path)}, line {number}")
            if found is not None:
                yield len(line), found


def _chunks(tasks: Iterable[tuple[int, bytes | Task]], slow: bool) -> Iterator[tuple[int, list[bytes | Task]]]:
    """Give tasks in lists of bounded size, each with the number of bytes read so far."""
    chunk: list[bytes | Task] = []
    size = read = 0
    until = time.monotonic() + GATHERING
    for length, task in tasks:
        chunk.append(task)
        size += length
        if len(chunk) >= CHUNK or size > CHUNK_BYTES or (slow and time.monotonic() > until):
            read += size
            yield read, chunk
            chunk, size, until = [], 0, time.monotonic() + GATHERING
    if chunk:
        yield read + size, chunk


@dataclass(frozen=True)
class Work:
    """A put or a schedule of tasks."""

    queue: AnyQueue
    source: Source
    body: Any  # the payload that goes with each task
    how: dict[str, Any]
    intake: Intake = field(default_factory=Intake)
    sitemaps: Sitemaps = field(default_factory=Sitemaps)
    wait: float = 0.0  # how long the server may be away between two tasks, seconds

    def run(self, tasks: list[str], out: Sink) -> None:
        """Put the tasks that are named, or else those of the source."""
        source, body = self.source, self.body
        if tasks and source.path is not None:
            raise InvalidInput("name tasks or give --file, not both")
        self.sitemaps.check(body, bool(tasks or source.as_jsonl or source.path is not None))
        self.intake.check()
        if tasks and tasks != ["-"]:
            if source.as_jsonl:
                raise InvalidInput("--jsonl goes with --file or stdin, not with named tasks")
            named = [raw(task) if body is None else Task(task, body) for task in tasks]
            taken = [self.intake.take(task, f"task {number}") for number, task in enumerate(named, 1)]
            given = [task for task in taken if task is not None]
            self._meet()
            self.intake.compare(given)
            out.outcome(self._send(given))
        else:
            if source.path is None and not tasks and not self.sitemaps.sources and piped_in() is None:
                raise InvalidInput("name tasks, give --file, or pipe them in")
            self._meet()
            counts = self._stream((self.sitemaps if self.sitemaps.sources else source).tasks(self.intake, body))
            known = {state.value: f"known already, in {state.value}" for state in State} if sys.stdout.isatty() else {}
            out.facts(counts, ((known.get(name, name), count) for name, count in counts.items()), ("answer", "tasks"))
        self.intake.end()

    def _send(self, *tasks: Any) -> Outcome:
        if {"at", "after"} & self.how.keys():
            return self.queue.schedule(*tasks, **self.how)
        return self.queue.put(*tasks, **self.how)

    def _stream(self, tasks: Iterable[tuple[int, bytes | Task]]) -> dict[str, int]:
        path, counts, put = self.source.path, Counter[str](), 0
        total = path.stat().st_size if path is not None and path.is_file() else None
        try:
            with progress("putting", total) as tell:
                for read, chunk in _chunks(tasks, bool(self.sitemaps.sources)):
                    self.intake.compare(chunk)
                    counts.update(patiently(self.queue, partial(self._send, chunk), self.wait).counts())
                    put += len(chunk)
                    tell(read, put)
        except BaseException:
            if put:
                say(f"the first {put:,} tasks were put before the command ended")
            raise
        refused = self.intake.refused.total()
        return {**counts, "refused": refused} if refused else dict(counts)

    def _meet(self) -> None:
        """Say that the queue is new, if another queue may have been meant; note which spider owns the queue."""
        with suppress(AccessDenied):  # a user who may only put needs no hint
            if words := new_words(self.queue):
                say(words)
            self.intake.spider = self.queue.stats().settings.get(OWNER)


@dataclass(frozen=True)
class How:
    """How tasks are put or scheduled."""

    again: Annotated[bool, "Also put done and failed tasks back."] = False
    group: Annotated[str | None, "The host to which the tasks belong, once the queue is polite."] = None
    priority: Annotated[
        int | None, "N: On a polite queue, -1000 to 1000: of the tasks that wait for a host, the highest goes first."
    ] = None
    improve: Annotated[
        bool, "With --priority: tasks in progress or done at a lower priority run once more at this one."
    ] = False


Durable = Annotated[int, "N: Number of replicas that must confirm the tasks."]


@command()
def put(
    queue: Name, tasks: Ids = None, *, source: Source, how: How,
    rerun: Annotated[
        bool, "A run of each task begins after this put, with its payload: also of tasks in progress or done."
    ] = False,
    durable: Durable = 0,
    urls: Annotated[
        bool, "Tasks are URLs: put each in its one form; leave out comments; name what is no URL of a page."
    ] = False,
    sitemaps: Sitemaps,
    group_by: Annotated[
        By | None,
        "What the URLs on a polite queue are grouped by: host, or registrable domain (default: host).",
    ] = None,
    lenient: Annotated[bool, "Exit with 0 although URLs or sitemaps were refused."] = False,
    shards: Shards = None, wait: Wait = FIVE_MINUTES, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Put tasks, from arguments, a file, stdin or a sitemap.

    For each named task, a line says "added", or the state that holds the task
    already, or "raised": the task was there with a lower priority, and has this
    priority and payload from now on, or "rerun": with --rerun, the task is in
    progress, and runs once more after this run. For a file, stdin or a sitemap,
    the answers are counted: "todos 1" says that one of the tasks was in todos
    already.

    If --urls, --sitemap or --group-by refuses a URL, stderr says which URL, on
    which line, and why. All other URLs are put, and the exit code is 2, or 0
    with --lenient.

    If the queue belongs to a Scrapy spider, stderr names the URLs that the spider
    writes in another form. They are put as they stand.
    """
    if how.group is not None and group_by is not None:
        raise InvalidInput("give --group or --group-by, not both")
    intake, body = Intake(urls or bool(sitemaps.sources), group_by, lenient), source.body()
    with server.open(queue, shards) as opened:
        if group_by is By.domain:
            from timeoutq.urls import domains_of

            intake.check()
            intake.domain = domains_of(opened)
        said = {**vars(how), "rerun": rerun, "durable": durable}
        Work(opened, source, body, said, intake, sitemaps, wait).run(tasks or [], out)


@command()
def schedule(
    queue: Name, tasks: Ids = None,
    at: Annotated[Moment | None, "Unix seconds, or ISO 8601 with a zone."] = None,
    after: Annotated[Seconds | None, "After this time, like 30s, 5m, 2h."] = None, *,
    source: Source, how: How, durable: Durable = 0, shards: Shards = None, wait: Wait = FIVE_MINUTES,
    server: Server, out: Sink,
) -> None:  # fmt: skip
    """Schedule tasks at a time or after a while; tasks that are scheduled already get the new time."""
    arguments.due(at, after)
    body, due = source.body(), {"at": at} if at is not None else {"after": after}
    with server.open(queue, shards) as opened:
        Work(opened, source, body, {**vars(how), "durable": durable, **due}, wait=wait).run(tasks or [], out)
