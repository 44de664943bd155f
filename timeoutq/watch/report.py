"""A report of a queue: pictures of a crawl in one file of HTML, which needs no network and runs no script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import islice

from timeoutq.client.shards import AnyQueue
from timeoutq.rooms.failures import KINDS, FailureKind
from timeoutq.verbs import replies
from timeoutq.verbs.sending import ask
from timeoutq.watch import charts
from timeoutq.watch.snapshot import Snapshot, snapshot
from timeoutq.words import durations
from timeoutq.words.counts import Period
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import HostInfo, WorkerInfo
from timeoutq.words.text import age, counted, safe

ROWS = 20  # the most rows of a table
HOSTS = 5000  # the most hosts that the report looks at; it shows those of them that were visited most

STYLE = (
    charts.STYLE
    + """
:root { color-scheme: light dark; --ground: #fff; --ink: #1c1c1c; --soft: #595959; --rule: #ddd; }
@media (prefers-color-scheme: dark) { :root { --ground: #161616; --ink: #ececec; --soft: #b0b0b0; --rule: #3a3a3a; } }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .2rem 0; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .2rem 0; color: var(--soft); overflow-wrap: anywhere; }
.pictures { columns: 2 28rem; column-gap: 2rem; } figure { break-inside: avoid; padding-bottom: .4rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--rule);
  overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 600; } .when { white-space: nowrap; }
th.n, td.n { text-align: right; white-space: nowrap; }
.id { min-width: 12rem; } .words { min-width: 16rem; width: 60%; }
figcaption { font-weight: 600; padding: .9rem 0 .2rem; }
.counts { display: flex; flex-wrap: wrap; gap: .3rem 1.6rem; margin: .8rem 0; padding: 0; list-style: none; }
.counts b { font-size: 1.3rem; display: block; } section, figure { margin: 0; min-width: 0; }
@media print { body { max-width: none; } }
"""
)


@dataclass(frozen=True, slots=True)
class Report:
    seen: Snapshot
    minutes: Sequence[Period]
    hours: Sequence[Period]
    kinds: Sequence[FailureKind]
    durations: Mapping[int, int]
    """How many runs of handlers ended in each bucket of `durations.py`, in the last minutes with any run."""
    hosts: Sequence[HostInfo]  # of a polite queue: of the hosts that were looked at, those that were visited most
    looked: int  # how many hosts were looked at for this


def gather(queue: AnyQueue) -> Report:
    """Look at a queue: counts and bounded pages only. Raises `Unavailable`, and what the parts of a look raise."""
    seen = snapshot(queue, ROWS)
    hosts: list[HostInfo] = []
    if seen.stats.politeness is not None:
        with suppress(InvalidInput):  # it is polite no more
            hosts += islice(queue.hosts.each(), HOSTS)
    key = queue.talk.operations.key
    spans = queue.run(ask(queue.talk, [("HGETALL", key("durations0")), ("HGETALL", key("durations1"))]))
    flat = [replies.flat(span) for span in spans]
    most = sorted(hosts, key=lambda host: (-host.visits, -host.waiting, host.host))
    return Report(
        seen, queue.history(by="minute"), queue.history(by="hour"), queue.failures.list(KINDS + 1),
        durations.together(flat), most[: 4 * ROWS], len(hosts),
    )  # fmt: skip


def document(report: Report) -> dict[str, object]:
    """Give the report as values for JSON, in which a program finds what the pictures show."""
    seen, runs = report.seen, sorted(report.durations.items())
    return {
        "queue": seen.queue, "url": seen.url, "at": seen.stats.now, "stats": seen.stats, "minutes": report.minutes,
        "hours": report.hours, "failures": report.kinds,
        "durations": [{"up_to": durations.bound(number), "count": count} for number, count in runs],
        "hosts": report.hosts, "workers": seen.workers, "errors": seen.errors, "silent": seen.silent,
    }  # fmt: skip


def page(report: Report) -> str:
    """Write the report as one file of HTML."""
    seen = report.seen
    allowed = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    paused = ", paused" if seen.stats.paused else ""
    silent = "".join(f"; {_safe(what)} did not answer: {_safe(why, 200)}" for what, why in seen.silent.items())
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{allowed}'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{_safe(seen.queue)}: report</title><style>{STYLE}</style></head><body><main>",
        f"<h1>Queue {_safe(seen.queue)}</h1>",
        f"<p>{_moment(seen.stats.now)} UTC, {_safe(seen.url)}{paused}{silent}</p>",
        _counts(seen),
        f'<div class="pictures">{"".join(_pictures(report))}</div>',
        *_tables(report),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _safe(value: object, most: int | None = None) -> str:
    return escape(safe(value, most), quote=True)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _counts(seen: Snapshot) -> str:
    stats = seen.stats
    of = [("known", stats.known), *((name.replace("_", " "), getattr(stats, name)) for name in reversed(charts.STACK))]
    items = "".join(f"<li><b>{count:,}</b>{name}</li>" for name, count in of if count or name != "waiting")
    return f'<ul class="counts">{items}</ul>'


def _pictures(report: Report) -> list[str]:
    stats = report.seen.stats
    figures: list[tuple[str, str]] = []
    for periods, length, of in ((report.minutes, 60, "minute"), (report.hours, 3600, "hour")):
        if of == "minute" or len(periods) > 24:  # else the minutes tell all
            figures.append((f"Tasks by state, by the {of}", charts.states(periods, f"{of}s", stats)))
            rates = charts.rates(periods, length, f"{of}-rates", stats.now)
            figures.append((f"Tasks a second, by the {of}", rates))
    figures.append(("How long handlers ran, in the last minutes with any run", charts.durations(report.durations)))
    kinds = [(kind.text, float(kind.count)) for kind in report.kinds]
    more = f"and {len(kinds) - charts.ROWS:,} more kinds" if len(kinds) > charts.ROWS else ""
    figures.append(("Failures by kind", charts.bars("Failures by kind", kinds, "kinds", more)))
    visits = [(host.host, float(host.visits)) for host in report.hosts if host.visits]
    waits = sorted(((host.host, float(host.waiting)) for host in report.hosts if host.waiting), key=lambda one: -one[1])
    for title, rows, name in (("Visits by host", visits, "visits"), ("Waiting tasks by host", waits, "waits")):
        if rows:
            figures.append((title, charts.bars(title, rows, name)))
    return [f"<figure><figcaption>{title}</figcaption>{picture}</figure>" for title, picture in figures]


def _tables(report: Report) -> list[str]:
    seen, kinds = report.seen, report.kinds
    looked = f"the first {report.looked:,} of " if seen.stats.hosts > report.looked else ""
    hosts = f"the most visited of {looked}{counted(seen.stats.hosts, 'host')}"
    return [
        _table(
            "Failures by kind", "tasks:n error:words last_task:id given_up_at,_UTC:when",
            [(kind.count, kind.text, kind.task, _moment(kind.last)) for kind in kinds],
            f"and {len(kinds) - ROWS:,} more kinds",
        ),
        _table(
            "Hosts", "host:id visits:n failures:n waiting:n",
            [(host.host, host.visits, host.failures, host.waiting) for host in report.hosts], hosts, seen.stats.hosts,
        ),
        _table(
            "Last errors", "at,_UTC:when task:id error:words",
            [(_moment(one.at), one.task, one.error) for one in seen.errors], "",
        ),
        _table(
            "Workers", "worker:id held:n acked:n failed:n last_sign_of_life:when",
            [(one.worker, one.held, one.acked, one.failed, _heard(one, seen.stats.now)) for one in seen.workers],
            f"and {len(seen.workers) - ROWS:,} more",
        ),
    ]  # fmt: skip


def _table(title: str, columns: str, rows: Sequence[Sequence[object]], more: str, many: int = 0) -> str:
    """Draw a table; `columns` are heads, each with its class: n (numbers), when, id or words."""
    if not rows:
        return ""
    heads = [column.rpartition(":") for column in columns.split()]
    head = "".join(f'<th scope="col" class="{kind}">{name.replace("_", " ")}</th>' for name, _, kind in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{f"{cell:,}" if isinstance(cell, int) else _safe(cell, 300)}</td>'
            for (_, _, kind), cell in zip(heads, row, strict=True)
        )
        + "</tr>"
        for row in rows[:ROWS]
    )
    below = f"<p>{more}</p>" if max(many, len(rows)) > ROWS else ""
    return (
        f'<section><h2>{title}</h2><div class="table" tabindex="0" role="region" aria-label="{title}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{below}</section>"
    )


def _heard(worker: WorkerInfo, now: float) -> str:
    return f"{age(max(0.0, now - worker.beat))} ago" + (", gone" if worker.is_gone(now) else "")
