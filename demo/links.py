"""Addresses and pages: what a page links to, each address in its one form, and what belongs to one site.

Pure functions that the crawler and the plain traversal share.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast
from urllib.parse import quote, urlsplit

from selectolax.lexbor import LexborHTMLParser
from w3lib.encoding import html_to_unicode
from webencodings import LABELS, lookup  # type: ignore[import-untyped]  # it ships no types

from timeoutq.urls import BadUrl, normalise

MOST_LINKS = 20_000
"""A page with more links to the crawl is refused: it was made to fill the queue."""

MOST_BYTES = 4 * 1024 * 1024
"""How long the links of a page may be together, bytes."""

MOST_TITLE = 1000
"""What is kept of a title, characters."""


_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")

# w3lib asks Python, which knows two thirds of the names that pages give to encodings; UTF-16 is not named within a page
_LABELS = {
    label.replace("-", "_"): label
    for label, name in cast("dict[str, str]", LABELS).items()
    if not name.startswith(("utf-16", "replacement"))
}


def _codec(name: str) -> codecs.CodecInfo | None:
    found = lookup(_LABELS.get(name, ""))
    return found.codec_info if found else None


codecs.register(_codec)


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


def read(html: bytes, base: str, wanted: Callable[[str], bool] = lambda url: True, *, content_type: str = "") -> Page:
    """Find the title of a page and the links of it that are wanted; `content_type` is the header it came with.

    Raises `TooManyLinks` for more than `MOST_LINKS` different ones, or more than `MOST_BYTES` of them. Nothing else is
    limited: a page of a megabyte can take minutes.
    """
    found: dict[str, None] = {}
    length = 0
    encoding, text = decoded(html, content_type)
    tree = LexborHTMLParser(text)
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
        url = canonical(_with_query_in(encoding, href), base)
        if url is not None and url not in found and wanted(url):
            found[url] = None
            length += len(url)
            if len(found) > MOST_LINKS:
                raise TooManyLinks(f"more than {MOST_LINKS:,} links")
            if length > MOST_BYTES:
                raise TooManyLinks(f"links of more than {MOST_BYTES >> 20} MB")
    title = tree.css_first("title")
    words = " ".join(title.text().split()) if title is not None else ""
    return Page(words[:MOST_TITLE], tuple(found))


def decoded(html: bytes, content_type: str) -> tuple[str, str]:
    """Give the encoding of a page and its text: by the byte order mark, the header, `<meta>`, or by its bytes."""
    try:
        return html_to_unicode(content_type or None, html, auto_detect_fun=_looks_like)
    except (LookupError, UnicodeError):  # Python has encodings that are none of text
        return "utf-8", html.decode("utf-8", "replace")


def _looks_like(html: bytes) -> str:
    try:
        html.decode()
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _with_query_in(encoding: str, href: str) -> str:
    """Give a link with its query as browsers send it: in the encoding of the page (URL standard of WHATWG, 4.3)."""
    path, mark, query = href.partition("?")
    if query.isascii() or encoding.startswith("utf"):
        return href
    quoted = partial(quote, safe="", encoding=encoding, errors="xmlcharrefreplace")
    return path + mark + _BEYOND_ASCII.sub(lambda found: quoted(found[0]), query)


def links(html: bytes, base: str, content_type: str = "") -> list[str]:
    """Give what the page links to on its own site (same scheme, host and port)."""
    return list(read(html, base, lambda url: same_site(url, base, "origin"), content_type=content_type).links)


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
