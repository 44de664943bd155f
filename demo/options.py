"""The words of the command line: what each means, which go together, and the settings of a crawl that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from demo.hosts import MOST
from demo.links import canonical
from demo.processes import RETRY_AT_ONCE
from demo.settings import SITES, Settings, SettingsError
from timeoutq.cli.lines import nodes, seconds
from timeoutq.words.errors import InvalidInput

OWN = Settings(site="origin", allow_private=True)
"""The demo's own site is on loopback, and nobody is disturbed by haste."""

RETRY = "1,10,60,300"
"""After how many seconds a page of a foreign site is tried again."""

RETRY_FOR_DAYS = "10,60,600,3600,21600,86400,86400,86400"
"""The same for a crawl that goes on for ever: a site that is away for a day loses no page."""

WHAT, HOW, WHERE, KEEP = "What is crawled", "How", "Where the queue is", "What is kept"

Site = Annotated[Path | None, typer.Option(help="Serve this folder of HTML, and crawl that.", rich_help_panel=WHAT)]
Url = Annotated[
    str | None, typer.Option(help="Crawl a site as it is, from this page, as a polite guest.", rich_help_panel=WHAT)
]
Sitemaps = Annotated[
    list[str] | None,
    typer.Option(
        "--sitemap", help="Begin with the pages of this sitemap, index or robots.txt: a URL or a file. Repeatable.",
        rich_help_panel=WHAT,
    ),
]  # fmt: skip
Hosts = Annotated[
    int | None, typer.Option(min=1, max=MOST, help="Crawl this many generated hosts.", rich_help_panel=WHAT)
]
Depth = Annotated[int | None, typer.Option(min=0, help="Crawl the pages within this many links.", rich_help_panel=WHAT)]
SameSite = Annotated[
    str | None,
    typer.Option(
        help=f"How far links may lead: to the same origin, to the same host, to any host ({', '.join(SITES)}).",
        rich_help_panel=WHAT,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        help="Follow only addresses like this: 'https://a.example/news/*'. Repeatable. The pages that lead there must "
        "match too.",
        rich_help_panel=WHAT,
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option(help="Follow no address like this: '*.pdf'. Repeatable.", rich_help_panel=WHAT)
]
Delay = Annotated[
    float | None, typer.Option(min=0, help="Seconds between visits of a host (default: 1).", rich_help_panel=HOW)
]
PerHost = Annotated[int, typer.Option(min=1, help="Visits of a host at once.", rich_help_panel=HOW)]
MaxBytes = Annotated[int, typer.Option(min=1, help="Longer pages fail.", rich_help_panel=HOW)]
AllowPrivate = Annotated[
    bool, typer.Option("--allow-private", help="Allow addresses like 10.0.0.1.", rich_help_panel=HOW)
]
DoRecrawl = Annotated[
    bool,
    typer.Option(
        "--recrawl", help="Visit pages again and again, sooner if they change, until Ctrl-C.", rich_help_panel=HOW
    ),
]
First = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="TIME", help="--recrawl: the first interval (default: 1d).", rich_help_panel=HOW
    ),
]
Shortest = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="TIME", help="--recrawl: the shortest interval (default: 1h).", rich_help_panel=HOW
    ),
]
Longest = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="TIME", help="--recrawl: the longest interval (default: 30d).", rich_help_panel=HOW
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Worker processes.", rich_help_panel=HOW)]
Kills = Annotated[
    int | None,
    typer.Option(
        min=0, help="Workers to kill (default: 2; none with --url, --sitemap or --hosts).", rich_help_panel=HOW
    ),
]
Kill = Annotated[bool, typer.Option("--kill", help="Kill workers at random until the end.", rich_help_panel=HOW)]
QueueName = Annotated[
    str | None,
    typer.Option(help="Use a queue of this name: a new one, or with --keep one that exists.", rich_help_panel=WHERE),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep", help="Leave the queue as it is at the end; the next crawl goes on with it.", rich_help_panel=WHERE
    ),
]
Redis = Annotated[str | None, typer.Option(help="Use this server instead of a private one.", rich_help_panel=WHERE)]
Shards = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Divide the queue into this many shards.", rich_help_panel=WHERE)
]
Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="N+M",
        help="Start a private cluster instead of a private server: 3+3 is 3 primaries and 3 replicas. If workers are "
        "killed, one primary is killed, too.",
        rich_help_panel=WHERE,
    ),
]
KeptIn = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Keep the queue: store the private server's data in this folder.", rich_help_panel=WHERE
    ),
]
Warc = Annotated[
    Path | None, typer.Option(help="Write every answer into this folder, as WARC 1.1.", rich_help_panel=KEEP)
]
WarcBytes = Annotated[int, typer.Option(min=1, help="Begin a new file after this many bytes.", rich_help_panel=KEEP)]
ResultsTo = Annotated[
    Path | None, typer.Option("--results", help="Append a line of JSON for each page.", rich_help_panel=KEEP)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=KEEP)]


@dataclass(frozen=True)
class Options:
    """The words of one command line."""

    site: Path | None = None
    url: str | None = None
    sitemap: tuple[str, ...] = ()
    hosts: int | None = None
    depth: int | None = None
    same_site: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    delay: float | None = None
    per_host: int = 1
    max_bytes: int = Settings.max_bytes
    allow_private: bool = False
    recrawl: bool = False
    first: float | None = None
    shortest: float | None = None
    longest: float | None = None
    workers: int = 4
    kills: int | None = None
    kill: bool = False
    queue: str | None = None
    keep: bool = False
    redis: str | None = None
    shards: int | None = None
    cluster: str | None = None
    state: Path | None = None
    warc: Path | None = None
    warc_bytes: int = Settings.warc_bytes
    results: Path | None = None
    as_json: bool = False

    @property
    def foreign(self) -> bool:
        """Whether somebody else's site is crawled."""
        return self.url is not None or bool(self.sitemap)

    @property
    def guest(self) -> bool:
        """Whether politeness counts: not on the demo's own site."""
        return self.foreign or self.hosts is not None

    @property
    def kept(self) -> bool:
        """Whether the queue stays."""
        return self.keep or self.state is not None

    @property
    def retry(self) -> str:
        """When a page that could not be had is tried again."""
        return RETRY_AT_ONCE if not self.foreign else RETRY_FOR_DAYS if self.recrawl else RETRY

    @property
    def most_kills(self) -> int:
        """How many workers are killed on the way."""
        return self.kills if self.kills is not None else 0 if self.guest else 2

    @property
    def nodes(self) -> tuple[int, int] | None:
        """How many primaries and replicas the private cluster has; None without one. Raises `InvalidInput`."""
        return None if self.cluster is None else nodes(self.cluster)

    @property
    def kills_primary(self) -> bool:
        """Whether a primary of the private cluster is killed on the way."""
        return self.cluster is not None and (self.kill or self.most_kills > 0)

    def check(self) -> None:
        """Raise `typer.BadParameter` for words that cannot be, or do not go together."""
        for problem in (self._of_places(), self._of_cluster(), self._of_scope(), self._of_recrawl()):
            if problem:
                raise typer.BadParameter(problem)

    def _of_places(self) -> str:
        if sum((self.site is not None, self.foreign, self.hosts is not None)) > 1:
            return "give one of --site, --url (or --sitemap) and --hosts"
        if self.site is not None and not self.site.is_dir():
            return f"--site {self.site} is not a folder"
        if self.url is not None and canonical(self.url) is None:
            return f"--url {self.url} is not an http or https address"
        if self.results is not None and not self.results.absolute().parent.is_dir():
            return f"--results {self.results}: there is no folder {self.results.absolute().parent}"
        if self.redis is not None and self.state is not None:
            return "--state is for the private server, and --redis names another: give one of them"
        return ""

    def _of_cluster(self) -> str:
        try:
            primaries, replicas = self.nodes or (0, 0)
        except InvalidInput as error:
            return str(error)
        if self.cluster is not None and self.redis is not None:
            return "--cluster starts a private cluster, and --redis names another server: give one of them"
        if self.kills_primary and not 3 <= primaries <= replicas:
            return (
                f"--cluster {self.cluster} has no replica that takes over from a primary that is killed, which needs 3 "
                "primaries, and a replica for each: give --cluster 3+3, or --kills 0 and no --kill"
            )
        return ""

    def _of_scope(self) -> str:
        if self.same_site is not None and self.same_site not in SITES:
            return f"--same-site {self.same_site} is none of {', '.join(SITES)}"
        scope = (self.depth, self.same_site, self.include or None, self.exclude or None)
        if not self.guest and (self.delay, *scope) != (None,) * 5:
            return (
                "--delay, --depth, --same-site, --include and --exclude are for --url, --sitemap and --hosts: "
                "give one of these too"
            )
        if self.hosts is not None and scope != (None,) * 4:
            return "--depth, --same-site, --include and --exclude are for --url and --sitemap: all hosts are crawled"
        return ""

    def _of_recrawl(self) -> str:
        if self.recrawl and not self.foreign:
            return "--recrawl is for --url and --sitemap: give one of these too"
        if not self.recrawl and (self.first, self.shortest, self.longest) != (None,) * 3:
            return "--first, --shortest and --longest go with --recrawl"
        return ""

    def settings(self) -> Settings:
        """Give the settings of the crawl; raises `SettingsError` for limits that leave nothing."""
        limits = Settings(
            delay=0.0 if not self.guest else 1.0 if self.delay is None else self.delay,
            ordered=self.guest,
            max_bytes=self.max_bytes,
            depth=self.depth,
            results=str(self.results.absolute()) if self.results is not None else "",
            warc=str(self.warc.absolute()) if self.warc is not None else "",
            warc_bytes=self.warc_bytes,
        )
        if self.foreign:
            shortest = self.shortest if self.shortest is not None else limits.shortest
            return replace(
                limits,
                site=self.same_site or "host",
                allow_private=self.allow_private,
                include=self.include,
                exclude=self.exclude,
                recrawl=self.recrawl,
                first=self.first if self.first is not None else limits.first,
                shortest=shortest,
                longest=self.longest if self.longest is not None else max(limits.longest, shortest),
            )
        if self.hosts is not None:
            # the hosts are the demo's own; the depth ends an endless calendar that no budget ends
            return replace(limits, site="any", allow_private=True, depth=60, most_pause=60.0)
        # the plain traversal, with which the crawl is compared, does not read a folder's robots.txt
        return replace(limits, site=OWN.site, allow_private=OWN.allow_private, robots=self.site is None)


def settings_of(options: Options) -> Settings:
    """Check the words, and give the settings that they make; raises `typer.BadParameter`."""
    options.check()
    try:
        return options.settings()
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from error
