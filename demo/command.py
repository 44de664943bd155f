"""The command `python -m demo`: reads the options, starts a server if none is named, runs the crawl, prints the result.

Without a URL it crawls a site of its own, kills workers while they hold leases, and compares the pages that are done
with a plain traversal of the same links. With --hosts it crawls many generated hosts, and judges by their log whether
the crawl was polite. With --url or --sitemap it crawls somebody's site, politely. `options.py` has the options,
`course.py` runs the crawl.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import typer
from rich.console import Console

from demo import options
from demo.course import Course
from demo.options import Options
from demo.place import Place
from demo.processes import DemoError, Interrupts
from demo.report import say_result, say_where
from demo.settings import Settings
from demo.warc import ArchiveError
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.server.embedded_cluster import EmbeddedCluster
from timeoutq.words.errors import TimeoutqError

KEPT_NAME = "crawl"
"""The queue of a crawl whose data is kept in a folder, unless --queue names another."""


def main(
    site: options.Site = None,
    url: options.Url = None,
    sitemap: options.Sitemaps = None,
    hosts: options.Hosts = None,
    depth: options.Depth = None,
    same_site: options.SameSite = None,
    include: options.Include = None,
    exclude: options.Exclude = None,
    delay: options.Delay = None,
    per_host: options.PerHost = 1,
    max_bytes: options.MaxBytes = Settings.max_bytes,
    allow_private: options.AllowPrivate = False,
    recrawl: options.DoRecrawl = False,
    first: options.First = None,
    shortest: options.Shortest = None,
    longest: options.Longest = None,
    workers: options.Workers = 4,
    kills: options.Kills = None,
    kill: options.Kill = False,
    queue: options.QueueName = None,
    keep: options.Keep = False,
    redis: options.Redis = None,
    shards: options.Shards = None,
    cluster: options.Cluster = None,
    state: options.KeptIn = None,
    warc: options.Warc = None,
    warc_bytes: options.WarcBytes = Settings.warc_bytes,
    results: options.ResultsTo = None,
    as_json: options.AsJson = False,
) -> None:
    """Crawl a site (--url, --sitemap), many generated hosts (--hosts), or the demo's own site.

    On its own site, it kills two workers on the way by default, and shows that nothing is lost.
    """
    given = Options(
        site=site, url=url, sitemap=tuple(sitemap or ()), hosts=hosts, depth=depth, same_site=same_site,
        include=tuple(include or ()), exclude=tuple(exclude or ()), delay=delay, per_host=per_host,
        max_bytes=max_bytes, allow_private=allow_private, recrawl=recrawl, first=first, shortest=shortest,
        longest=longest, workers=workers, kills=kills, kill=kill, queue=queue, keep=keep, redis=redis, shards=shards,
        cluster=cluster, state=state, warc=warc, warc_bytes=warc_bytes, results=results, as_json=as_json,
    )  # fmt: skip
    run(given, options.settings_of(given))


def run(given: Options, settings: Settings) -> None:
    """Run the crawl, print what came of it, and end with the exit code."""
    console = Console(highlight=False)
    interrupts = Interrupts()
    interrupts.install()
    try:
        with ExitStack() as stack:
            place = place_of(given, stack)
            verdict = Course(given, settings, console, interrupts).run(place)
            say_result(verdict, console, given.as_json)
            where = partial(say_where, verdict["queue"], place.address, private=given.redis is None)
            if given.state is not None:
                typer.echo(f"queue {verdict['queue']} is kept in {given.state}: the same command goes on", err=True)
            elif given.keep and given.redis is None:
                interrupts.wait(where)
            elif given.keep:
                where()
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (TimeoutqError, DemoError, ArchiveError) as error:
        typer.echo(f"demo: {error}", err=True)
        raise typer.Exit(3) from None
    raise typer.Exit(0 if verdict["ok"] else 1)


def place_of(given: Options, stack: ExitStack) -> Place:
    """Start the private server or cluster, if no server is named, and say where the queue is."""
    name = given.queue or (KEPT_NAME if given.state is not None else None)
    if given.nodes is not None:
        cluster = stack.enter_context(EmbeddedCluster(*given.nodes, given.state))
        return Place(cluster.url, name, given.kept, given.shards, cluster)
    address = given.redis or stack.enter_context(EmbeddedServer(given.state)).url
    return Place(address, name, given.kept, given.shards)


def start() -> None:
    """Read the words of the command line and run."""
    typer.run(main)
