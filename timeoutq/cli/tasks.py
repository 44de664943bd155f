"""The commands that bring tasks in: put and schedule, from arguments, files, stdin and sitemaps."""

from __future__ import annotations

import base64
import codecs
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from timeoutq.cli.app import new_words, patiently, say, stop
from timeoutq.cli.command import FIVE_MINUTES, Ids, Moment, Name, Seconds, Server, Shards, Wait, command
from timeoutq.cli.printing import Sink, bar
from timeoutq.cli.reading import LONGEST_LINE, bare_line, lines_of, piped_in, read_json
from timeoutq.words import arguments
from timeoutq.words.arguments import shown
from timeoutq.words.errors import AccessDenied, BadUrl, InvalidInput
from timeoutq.words.exit_codes import USAGE
from timeoutq.words.model import Outcome, State, Task, raw, text
from timeoutq.words.text import counted, safe

if TYPE_CHECKING:
    from timeoutq.client.shards import AnyQueue
    from timeoutq.urls import Limits

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
    refused: int = 0
    sitemaps: int = 0  # how many of those were sitemaps
    tell: Callable[[str], None] = say  # prints a line on stderr
    is_within: bool = False  # whether what was read last is the beginning of a line that is too long
    spider: str | None = None  # the spider that owns the queue: the URLs of its tasks are in Scrapy's form
    domain: Callable[[str], str] | None = None
    """Gives the domain of a URL; None: by the public suffix list of this machine."""
    unlike: int = 0  # how many URLs are in another form

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


def place(path: Path | None) -> str:
    """Name a file; None is standard input."""
    return "standard input" if path is None or str(path) == "-" else str(path)


CHUNK = 5000
GATHERING = 1.0  # how long the pages of slow sitemaps gather before they are put, seconds
KEYS = ("task", "payload", "group", "priority", "improve", "rerun")  # what a line of --jsonl may say


def _read_line(line: bytes, number: int, as_jsonl: bool, payload: Any) -> bytes | Task | None:

    bare = bare_line(line, number)
    if not bare:
        return None
    try:
        if len(line) >= LONGEST_LINE:
            raise InvalidInput(f"it has more than {LONGEST_LINE:,} bytes")
        if not as_jsonl:
            id = arguments.task_id(bare)
            return id if payload is None else Task(id, payload)
        try:
            found = read_json(bare)
        except ValueError as error:
            raise InvalidInput(f"not JSON: {error}") from error
        if not isinstance(found, dict) or "task" not in found:
            raise InvalidInput('not an object with "task"')
        fields = cast("dict[str, Any]", found)
        if unknown := sorted(fields.keys() - set(KEYS)):
            raise InvalidInput(f"unknown key {unknown[0]!r:.60}: a line has {', '.join(KEYS)}")
        task, group = arguments.task_id(_id_of(fields["task"])), fields.get("group")
        arguments.pack(fields.get("payload"), task)
        if group is not None:
            arguments.host(group)
        priority, improve = fields.get("priority"), arguments.flag(fields.get("improve", False), "improve")
        if priority is not None:
            arguments.priority(priority)
        elif improve:
            raise InvalidInput('"improve" compares priorities: add "priority" to the line')
        rerun = bool(arguments.flag(fields.get("rerun", False), "rerun"))
        return Task(task, fields.get("payload"), group, priority=priority, improve=bool(improve), rerun=rerun)
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from error


def _id_of(given: Any) -> Any:
    """Give an id of a line: text, or bytes as `{"b64": …}`, as over HTTP."""
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    if list(fields) != ["b64"]:
        return cast("Any", given)
    try:
        return base64.b64decode(fields["b64"], validate=True)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"the id is not base64: {error}") from None


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
    body: Any = None  # the payload, as it was read from JSON
    sitemaps: Sitemaps = field(default_factory=Sitemaps)
    intake: Intake = field(default_factory=Intake)
    wait: float = 0.0  # how long the server may be away between two tasks, seconds

    def read(self, **more: Any) -> Source:
        """Read --payload; raises `InvalidInput` for text that is not JSON, and for one that comes with --jsonl."""
        if self.payload is None:
            return replace(self, **more)
        if self.as_jsonl:
            raise InvalidInput("give --payload or --jsonl, whose lines have their own, not both")
        try:
            return replace(self, body=read_json(self.payload), **more)
        except ValueError as error:
            raise InvalidInput(f"--payload is not JSON: {error}") from error

    def chunks(self) -> Iterator[tuple[int, list[bytes | Task]]]:
        """Give tasks in lists of bounded size, each with the number of bytes read so far."""
        chunk: list[bytes | Task] = []
        size = read = 0
        slow = bool(self.sitemaps.sources)
        until = time.monotonic() + GATHERING
        for read, length, task in self._sitemaps() if slow else self._lines():
            chunk.append(task)
            size += length
            if len(chunk) >= CHUNK or size > 4 * 1024 * 1024 or (slow and time.monotonic() > until):
                yield read, chunk
                chunk, size, until = [], 0, time.monotonic() + GATHERING
        if chunk:
            yield read, chunk

    def _lines(self) -> Iterator[tuple[int, int, bytes | Task]]:

        intake, read, where = self.intake, 0, place(self.path)
        number, begins = 0, True
        for line in lines_of(self.path):
            number, begins = number + begins, line.endswith(b"\n")  # a line that is too long comes in pieces
            read += len(line)
            if intake.urls and not self.as_jsonl:
                bare = intake.line(line, number)
                found = bare if bare is None or self.body is None else Task(bare, self.body)
            else:
                found = _read_line(line, number, self.as_jsonl, self.body)
            if found is not None and intake.is_needed:
                found = intake.take(found, f"{where}, line {number}")
            if found is not None:
                yield read, len(line), found

    def _sitemaps(self) -> Iterator[tuple[int, int, bytes | Task]]:
        for task in self.sitemaps.tasks(self.intake, self.body):
            yield 0, 0, task


def _put_stream(queue: AnyQueue, source: Source, how: dict[str, Any]) -> dict[str, int]:
    path = source.path
    total = path.stat().st_size if path is not None and path.is_file() else None
    counts: dict[str, int] = {}
    put = 0
    try:
        with bar() if sys.stderr is not None and sys.stderr.isatty() else nullcontext() as progress:
            shown = progress.add_task("putting", total=total, done=0) if progress else None
            if progress:  # lines on stderr stand above the bar
                from rich.text import Text

                write = partial(progress.console.print, soft_wrap=True)
                source.intake.tell = lambda message: write(Text(f"timeoutq: {safe(message)}"))
            for read, chunk in source.chunks():
                source.intake.compare(chunk)
                step = partial(_put_or_schedule, queue, [chunk], how)
                for answer, count in patiently(queue, step, source.wait).counts().items():
                    counts[answer] = counts.get(answer, 0) + count
                put += len(chunk)
                if progress:
                    progress.update(shown, completed=read, done=put)
    except BaseException:
        if put:
            say(f"the first {put:,} tasks were put before the command ended")
        raise
    if source.intake.refused:
        counts["refused"] = source.intake.refused
    return counts


def _put_or_schedule(queue: AnyQueue, tasks: Iterable[Any], how: dict[str, Any]) -> Outcome:
    if "at" in how or "after" in how:
        return queue.schedule(*tasks, **how)
    return queue.put(*tasks, **how)


def _put(queue: AnyQueue, tasks: list[str], source: Source, how: dict[str, Any], out: Sink) -> None:
    """Put the tasks that are named, or else those of the source."""
    intake = source.intake
    if tasks and source.path is not None:
        raise InvalidInput("name tasks or give --file, not both")
    source.sitemaps.check(source.body, bool(tasks or source.as_jsonl or source.path is not None))
    intake.check()
    if tasks and tasks != ["-"]:
        if source.as_jsonl:
            raise InvalidInput("--jsonl goes with --file or stdin, not with named tasks")
        _put_named(queue, tasks, source, how, out)
    else:
        if source.path is None and not tasks and not source.sitemaps.sources and piped_in() is None:
            raise InvalidInput("name tasks, give --file, or pipe them in")
        _meet(queue, intake)
        counts = _put_stream(queue, source, how)
        known = {state.value: f"known already, in {state.value}" for state in State} if sys.stdout.isatty() else {}
        shown = ((known.get(answer, answer), count) for answer, count in counts.items())
        out.facts(counts, shown, ("answer", "tasks"))
    intake.end()


def _put_named(queue: AnyQueue, tasks: list[str], source: Source, how: dict[str, Any], out: Sink) -> None:

    body, intake = source.body, source.intake
    given: Any = tasks if body is None else [Task(task, body) for task in tasks]
    if intake.is_needed:
        taken = [
            intake.take(raw(task) if body is None else Task(task, body), f"task {number}")
            for number, task in enumerate(tasks, 1)
        ]
        given = [task for task in taken if task is not None]
    _meet(queue, intake)
    intake.compare(given)
    out.outcome(_put_or_schedule(queue, given, how))


def _meet(queue: AnyQueue, intake: Intake) -> None:
    """Say that the queue is new, if another queue may have been meant; note which spider owns the queue."""
    with suppress(AccessDenied):  # a user who may only put needs no hint
        words = new_words(queue)
        if words:
            say(words)
        intake.spider = queue.stats().settings.get(OWNER)


@dataclass(frozen=True)
class How:
    """How tasks are put or scheduled."""

    again: Annotated[bool, "Also put done and failed tasks back."] = False
    group: Annotated[str | None, "The host to which the tasks belong, once the queue is polite."] = None
    priority: Annotated[
        int | None,
        "N: On a polite queue, -1000 to 1000: of the tasks that wait for a host, the highest goes first.",
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
    intake = Intake(urls or bool(sitemaps.sources), group_by, lenient)
    source = source.read(sitemaps=sitemaps, intake=intake, wait=wait)
    with server.open(queue, shards) as opened:
        if group_by is By.domain:
            from timeoutq.urls import domains_of

            intake.check()
            intake.domain = domains_of(opened)
        _put(opened, tasks or [], source, {**vars(how), "rerun": rerun, "durable": durable}, out)


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
    source = source.read(wait=wait)
    due = {"at": at} if at is not None else {"after": after}
    with server.open(queue, shards) as opened:
        _put(opened, tasks or [], source, {**vars(how), "durable": durable, **due}, out)
