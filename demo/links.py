"""Addresses and pages: what a page links to, each address in its one form, and what belongs to one site.

Pure functions that the crawler and the plain traversal share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from selectolax.lexbor import LexborHTMLParser

from timeoutq.urls import BadUrl, normalise

MOST_LINKS = 20_000
"""A page with more links to the crawl is refused: it was made to fill the queue."""

MOST_BYTES = 4 * 1024 * 1024
"""How long the links of a page may be together, bytes."""

MOST_TITLE = 1000
"""What is kept of a title, characters."""


class TooManyLinks(Exception):
    """The page has more links than a page may have; the message says how many it may have."""


@dataclass(frozen=True)
class Page:
    """What was found in a page of HTML."""

    title: str = ""
    links: tuple[str, ...] = ()
    """Canonical, each once, in the order of the page."""


def canonical(url: str, base: str | None = None) -> str | None:
    """Give the one form of an address (`timeoutq.urls.normalise`), or None for what is no page on http or https."""
    try:
        return normalise(url, base)
    except BadUrl:
        return None


def read(html: bytes, base: str, wanted: Callable[[str], bool] = lambda url: True) -> Page:
    """Find the title of a page and the links of it that are wanted.

    Raises `TooManyLinks` for more than `MOST_LINKS` different ones, or more than `MOST_BYTES` of them. Nothing else is
    limited: a page of a megabyte can take minutes.
    """
    found: dict[str, None] = {}
    length = 0
    tree = LexborHTMLParser(html)
    for node in tree.css("base[href]"):
        with suppress(BadUrl):
            base = normalise(node.attributes.get("href") or "", base)
        break
    seen: set[str] = set()
    for node in tree.css("a[href]"):
        href = node.attributes.get("href") or ""
        if href in seen:
            continue  # a menu repeats itself, and the canonical form is what takes time here
        seen.add(href)
        url = canonical(href, base)
        if url is not None and url not in found and wanted(url):
            found[url] = None
            length += len(url)
            if len(found) > MOST_LINKS:
                raise TooManyLinks(f"more than {MOST_LINKS:,} links")
            if length > MOST_BYTES:
                raise TooManyLinks(f"links of more than {MOST_BYTES >> 20} MB")
    title = tree.css_first("title")
    text = " ".join(title.text().split()) if title is not None else ""
    return Page(text[:MOST_TITLE], tuple(found))


def links(html: bytes, base: str) -> list[str]:
    """Give what the page links to on its own site (same scheme, host and port)."""
    return list(read(html, base, lambda url: same_site(url, base, "origin")).links)


def same_site(url: str, other: str, site: str) -> bool:
    """Say whether two canonical addresses are of one site, which is what the settings' `site` names."""
    if site == "any":
        return True
    if site == "origin":
        return origin(url) == origin(other)
    first, second = (urlsplit(one).hostname or "" for one in (url, other))
    return first.removeprefix("www.") == second.removeprefix("www.")


def origin(url: str) -> str:
    """Give scheme, host and port: whose robots.txt counts for the page."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_html(content_type: str) -> bool:
    """Say whether a response may hold links."""
    return content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")
