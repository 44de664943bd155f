"""Addresses and pages: one canonical form for each, what a page links to, and what belongs to one site.

Pure functions that the crawler and the plain traversal share.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit, urlunsplit

import idna
from selectolax.lexbor import LexborHTMLParser
from w3lib.url import canonicalize_url, safe_url_string

LONGEST = 1024
"""The queue's limit for the id of a task, bytes."""

PORTS = {"http": 80, "https": 443}

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


def canonical(url: str, base: str = "") -> str | None:
    """Give the one form in which a page is known, or None for what is not a page on http or https.

    Relative addresses are joined to `base`. The host is lower case and ASCII (IDNA), the default port, the fragment
    and a user's name are dropped, dot segments resolved, escapes and the order of query arguments made uniform.
    """
    try:
        joined = urljoin(base, url.strip())
        parts = urlsplit(joined)
        host = host_name(parts.hostname or "")
        if parts.scheme not in PORTS or host is None:
            return None
        port = parts.port
        netloc = f"[{host}]" if ":" in host else host
        if port is not None and port != PORTS[parts.scheme]:
            netloc += f":{port}"
        path = without_dots(parts.path) or "/"
        found = canonicalize_url(safe_url_string(urlunsplit((parts.scheme, netloc, path, parts.query, ""))))
        return found if len(found.encode()) <= LONGEST else None
    except ValueError:  # a port, an IPv6 address or a surrogate that is none
        return None


def host_name(host: str) -> str | None:
    """Give a host's name in lower case and ASCII, without the root's dot; None for what no host is called."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))
    host = host.rstrip(".").lower()
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except idna.IDNAError:
            return None
    # names with an underscore exist, so IDNA has no word in what is ASCII already
    fine = all(0 < len(label) <= 63 and set(label) <= _LETTERS for label in host.split(".")) and len(host) <= 253
    return host if fine else None


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def without_dots(path: str) -> str:
    """Resolve `.` and `..` in a path (RFC 3986, 5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")
    for i, segment in enumerate(segments):
        last = i == len(segments) - 1
        if segment in (".", ".."):
            if segment == ".." and len(kept) > 1:
                kept.pop()
            if last:
                kept.append("")
        else:
            kept.append(segment)
    return "/".join(kept)


def read(html: bytes, base: str, wanted: Callable[[str], bool] = lambda url: True) -> Page:
    """Find the title of a page and the links of it that are wanted.

    Raises `TooManyLinks` for more than `MOST_LINKS` different ones, or more than `MOST_BYTES` of them. Nothing else is
    limited: a page of a megabyte can take minutes.
    """
    found: dict[str, None] = {}
    length = 0
    tree = LexborHTMLParser(html)
    for node in tree.css("base[href]"):
        with suppress(ValueError):
            base = urljoin(base, node.attributes.get("href") or "")
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
