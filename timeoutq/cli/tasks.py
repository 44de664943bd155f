"""The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps."""

from __future__ import annotations

import base64
import codecs
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

from timeoutq.cli.command import FIVE_MINUTES, Ids, Known, Moment, Name, Seconds, Server, Shards, Wait, command
from timeoutq.cli.lines import LONGEST_LINE, Sink, bare_line, lines_of, piped_in, place, read_json, read_option, size_of
from timeoutq.cli.saying import exit_unless, new_words, patiently, progress, refuse, say, stop
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import AccessDenied, BadUrl, InvalidInput
from timeoutq.words.exit_codes import USAGE
from timeoutq.words.model import Outcome, Task, raw, text
from timeoutq.words.text import counted

OWNER = "scrapy_spider"  # the setting of a queue that says which spider of Scrapy has made the queue
TOLD = 10  # how many URLs are named that are not in the spider's form; all are counted
CHUNK = 5000
CHUNK_BYTES = 4 * 1024 * 1024
GATHERING = 1.0  # how long tasks of a slow source, such as a sitemap, gather before they are put, seconds
KEYS = ("task", "payload", "group", "priority", "improve", "rerun")  # what a line of --jsonl may say

# a # at the beginning of a line or after a blank begins a comment; elsewhere it begins a fragment
_COMMENT = re.compile(rb"(?:\A|[ \t])#.*", re.DOTALL)


class By(StrEnum):
    host = "host"
    domain = "domain"


@dataclass(frozen=True)
class Source:
    path: Annotated[Path | None, "--file -f: File of ids, one per line; blanks around an id are cut; - is stdin."] = (
        None
    )
    as_jsonl: Annotated[
        bool, '--jsonl: Lines are JSON: {"task": …}, or with "payload", "group", "priority", "improve", "rerun", too.'
    ] = False
    payload: Annotated[str | None, "JSON that goes with each task."] = None


@dataclass(frozen=True)
class Sitemaps:
    sources: Annotated[
        list[str] | None,
        "--sitemap URL|FILE: Put the pages of a sitemap, an index or a robots.txt; may be given again.",
    ] = None
    keep_data: Annotated[
        bool, "--sitemap-data: Payload: what the sitemap says in lastmod, changefreq and priority."
    ] = False
    max_urls: Annotated[int | None, "N 1..: The most URLs from each --sitemap (default: 10,000,000)."] = None
    max_time: Annotated[Seconds | None, "The longest time for each --sitemap (default: 1h)."] = None


@dataclass(frozen=True)
class How:
    again: Annotated[bool, "Also put done and failed tasks back."] = False
    group: Annotated[str | None, "The host to which the tasks belong, once the queue is polite."] = None
    priority: Annotated[
        int | None, "N: On a polite queue, -1000 to 1000: of the tasks that wait for a host, the highest goes first."
    ] = None
    improve: Annotated[
        bool, "With --priority: tasks in progress or done at a lower priority run once more at this one."
    ] = False


@dataclass
class Intake:
    """Tasks on their way into a queue: where they come from, how they are put, and what was refused."""

    queue: Known
    send: Callable[..., Outcome]  # puts or schedules tasks
    source: Source
    wait: float  # how long the server may be away between two tasks, seconds
    sitemaps: Sitemaps = field(default_factory=Sitemaps)
    urls: bool = False  # whether ids are URLs, which get their one form
    by: By | None = None
    lenient: bool = False
    payload: Any = None  # goes with each task
    domain: Callable[[str], str] | None = None  # gives the domain of a URL
    spider: str | None = None  # the spider of Scrapy that owns the queue
    pause: float = 0.0  # between two sitemaps, seconds: the delay of the queue
    unlike: int = 0  # how many URLs the spider writes in another form
    hinted: bool = False  # whether a line was told of that may be JSON
    refused: Counter[str] = field(default_factory=Counter[str])  # URLs and sitemaps

    @property
    def takes_urls(self) -> bool:
        return self.urls or self.by is not None

    def run(self, tasks: list[str], out: Sink) -> None:
        """Put the tasks that are named, or else those of the sitemaps or of the source."""
        named = tasks if tasks != ["-"] else []
        self._check(bool(tasks), bool(named))
        with_payload = (raw(task) if self.payload is None else Task(task, self.payload) for task in named)
        taken = [self._take(task, f"task {number}") for number, task in enumerate(with_payload, 1)]
        given = [task for task in taken if task is not None]
        with suppress(AccessDenied):  # a user who may only put needs no hint
            if words := new_words(self.queue):
                say(words)
            stats = self.queue.stats()
            self.spider = stats.settings.get(OWNER)
            self.pause = stats.politeness.delay if stats.politeness else 0.0
        if named:
            self._compare(given)
            out.outcome(self.send(given))
        else:
            counts = self._stream()
            exit_unless(counts or not self.sitemaps.sources, "nothing was put: the sitemap names no page")
            out.facts(counts, counts.items(), ("answer", "tasks"))
        if self.unlike > TOLD:
            say(f"{self.unlike:,} URLs in all are not in the form in which spider {self.spider} writes them")
        if (many := self.refused.total()) and not self.lenient:
            words = " and ".join(counted(self.refused[noun], noun) for noun in ("URL", "sitemap") if self.refused[noun])
            were = "was" if many == 1 else "were"
            stop(f"{words} {were} refused; all others were put (--lenient: exit code 0)", USAGE)

    def _check(self, tasks: bool, named: bool) -> None:
        """Raise `InvalidInput` for options that do not go together, and `MissingExtra` if a package is missing."""
        path, as_jsonl, payload = (getattr(self.source, name) for name in ("path", "as_jsonl", "payload"))
        maps = self.sitemaps
        for name, value in (
            ("--sitemap-data", maps.keep_data), ("--max-urls", maps.max_urls), ("--max-time", maps.max_time),
        ):  # fmt: skip
            refuse(value and not maps.sources, f"{name} goes with --sitemap")
        refuse(payload and as_jsonl, "give --payload or --jsonl, whose lines have their own, not both")
        refuse(tasks and path, "name tasks or give --file, not both")
        several = maps.sources and (tasks or as_jsonl or path)
        refuse(several, "give --sitemap, or tasks, or --file, not several of them")
        refuse(maps.keep_data and payload, "give --payload or --sitemap-data, not both")
        no_lines = "--lenient goes with --urls, --sitemap or --group-by: nothing else refuses single lines"
        refuse(self.lenient and not self.takes_urls, no_lines)
        refuse(named and as_jsonl, "--jsonl goes with --file or stdin, not with named tasks")
        nothing = not (tasks or path or maps.sources or piped_in())
        refuse(nothing, "name tasks, give --file, or pipe them in")
        if payload is not None:
            self.payload = read_option("--payload", payload)
        if self.takes_urls:
            from timeoutq.urls import domains_of  # which says if a package is missing

            self.domain = domains_of(self.queue) if self.by is By.domain else None

    def _stream(self) -> dict[str, int]:
        """Put the tasks of the sitemaps or of the source; count the answers."""
        counts, put = Counter[str](), 0
        tasks = self._pages() if self.sitemaps.sources else self._lines()
        try:
            with progress("putting", size_of(self.source.path)) as tell:
                for read, chunk in _chunks(tasks):
                    self._compare(chunk)
                    counts.update(patiently(self.queue, partial(self.send, chunk), self.wait).counts())
                    put += len(chunk)
                    tell(read, put)
        except BaseException:
            if put:
                say(f"the first {put:,} tasks were put before the command ended")
            raise
        refused = self.refused.total()
        return {**counts, "refused": refused} if refused else dict(counts)

    def _pages(self) -> Iterator[tuple[int, bytes | Task]]:
        """Give the pages of all sitemaps as tasks, and 0 for the bytes that were read."""
        from timeoutq.urls import Limits, sitemap

        given: dict[str, Any] = {"pages": self.sitemaps.max_urls, "total_seconds": self.sitemaps.max_time}
        limits = Limits(pause=self.pause, **{name: value for name, value in given.items() if value is not None})
        for source in self.sitemaps.sources or ():
            for page in sitemap(source, limits=limits, refused=self._refuse):
                body = dict(page.data) or None if self.sitemaps.keep_data else self.payload
                task = self._take(page.url.encode() if body is None else Task(page.url, body), page.where)
                if task is not None:
                    yield 0, task

    def _lines(self) -> Iterator[tuple[int, bytes | Task]]:
        """Give the tasks of a file or of stdin, each with the length of its line in bytes."""
        where = place(self.source.path)
        for number, line in enumerate(lines_of(self.source.path), 1):
            task = self._line(line, number)
            if task is not None and self.takes_urls:
                task = self._take(task, f"{where}, line {number}")
            if task is not None:
                yield len(line), task

    def _line(self, line: bytes, number: int) -> bytes | Task | None:
        """Give the task in a line; None if it has none. `_take` refuses a URL that is too long, or holds a CR."""
        bare, as_urls = bare_line(line, number), self.urls and not self.source.as_jsonl
        try:
            if as_urls and number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise InvalidInput("the file is UTF-16: save it as UTF-8")
            if as_urls and b"\r" not in bare:
                bare = bare_line(_COMMENT.sub(b"", bare), 0)
            if not bare:
                return None
            if not as_urls:
                if len(line) >= LONGEST_LINE:
                    raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
                if self.source.as_jsonl:
                    return _read_jsonl(bare)
                bare = arguments.task_id(bare)
                if bare.startswith(b'{"') and not self.hinted:
                    self.hinted = True
                    say(f"line {number} is put as the id of a task, as it stands: for lines of JSON, give --jsonl")
            return bare if self.payload is None else Task(bare, self.payload)
        except InvalidInput as error:
            raise InvalidInput(f"line {number}: {error}") from error

    def _take(self, task: bytes | Task, where: str) -> bytes | Task | None:
        """Give a task as it is put; None if it is a URL that is refused."""
        if not self.takes_urls:
            return task
        from timeoutq.urls import host, normalise
        from timeoutq.urls.normal import LONGEST_URL

        id = task.task if isinstance(task, Task) else text(task)
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
            group = None if self.domain is None else self.domain(id)
            if self.by is By.host:
                host(id)  # which the queue finds by itself: what is no URL has none, and is refused
        except BadUrl as error:
            self._refuse(where, error)
            return None
        if isinstance(task, Task):
            return replace(task, task=id, group=task.group or group)
        return raw(id) if group is None else Task(id, group=group)

    def _refuse(self, where: str, error: InvalidInput) -> None:
        is_url = isinstance(error, BadUrl)
        self.refused["URL" if is_url else "sitemap"] += 1
        said = error.words if isinstance(error, BadUrl) else str(error)
        say(f"{where}: {said}" if where else said)

    def _compare(self, tasks: Iterable[bytes | Task]) -> None:
        """Warn of URLs that are not in the form in which the spider that owns the queue writes them: that of w3lib."""
        if self.spider is None or find_spec("w3lib") is None:
            return
        from w3lib.url import canonicalize_url

        for task in tasks:
            elsewhere = isinstance(task, Task) and hasattr(task.payload, "keys") and "url" in task.payload
            id = form = task.task if isinstance(task, Task) else text(task)
            # a mark in the fragment, as in #POST:1f0c…, is the spider's own
            if "://" in id and ":" not in id.partition("#")[2] and not elsewhere:
                with suppress(ValueError):  # what is no URL has no form
                    form = canonicalize_url(id)
            self.unlike += id != form
            if id != form and self.unlike <= TOLD:
                say(
                    f"{shown(id, 300)} is put as it stands, but spider {self.spider} writes this URL as {form}: put "
                    "that form, or the page is fetched twice"
                )


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


def _chunks(tasks: Iterable[tuple[int, bytes | Task]]) -> Iterator[tuple[int, list[bytes | Task]]]:
    """Give tasks in lists of bounded size, each with the number of bytes read so far."""
    chunk: list[bytes | Task] = []
    size = read = 0
    until = time.monotonic() + GATHERING
    for length, task in tasks:
        chunk.append(task)
        size += length
        if len(chunk) >= CHUNK or size > CHUNK_BYTES or time.monotonic() > until:
            read += size
            yield read, chunk
            chunk, size, until = [], 0, time.monotonic() + GATHERING
    if chunk:
        yield read + size, chunk


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
        By | None, "What the URLs on a polite queue are grouped by: host, or registrable domain (default: host).",
    ] = None,
    lenient: Annotated[bool, "Exit with 0 although URLs or sitemaps were refused."] = False,
    shards: Shards = None, wait: Wait = FIVE_MINUTES, server: Server, out: Sink,
) -> None:  # fmt: skip
    """Put tasks, from arguments, a file, stdin or a sitemap.

    For each named task, a line says "added", or the state that holds the task already, or "raised": the task was there
    with a lower priority, and has this priority and payload from now on, or "rerun": with --rerun, the task is in
    progress, and runs once more after this run. For a file, stdin or a sitemap, the answers are counted: "todos 1" says
    that one of the tasks was in todos already.

    If --urls, --sitemap or --group-by refuses a URL, stderr says which URL, on which line, and why. All other URLs are
    put, and the exit code is 2, or 0 with --lenient. Exit 1: a sitemap names no page.

    If the queue belongs to a Scrapy spider, stderr names the URLs that the spider writes in another form. They are put
    as they stand.
    """
    refuse(how.group is not None and group_by is not None, "give --group or --group-by, not both")
    with server.open(queue, shards) as opened:
        send = partial(opened.put, **vars(how), rerun=rerun, durable=durable)
        intake = Intake(opened, send, source, wait, sitemaps, urls or bool(sitemaps.sources), group_by, lenient)
        intake.run(tasks or [], out)


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
    with server.open(queue, shards) as opened:
        send = partial(opened.schedule, **vars(how), durable=durable, at=at, after=after)
        Intake(opened, send, source, wait).run(tasks or [], out)
