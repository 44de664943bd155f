"""What a page links to, in canonical form: pure functions that the crawler and the plain traversal share."""

from __future__ import annotations

from urllib.parse import urldefrag, urljoin, urlsplit

from selectolax.lexbor import LexborHTMLParser
from w3lib.url import canonicalize_url, safe_url_string


def canonical(url: str, base: str = "") -> str | None:
    """Give the one form in which a page is known, or None for what is not a page on http or https.

    Relative addresses are joined to `base`, fragments dropped, escapes and the order of query arguments made uniform.
    """
    try:
        joined = urldefrag(urljoin(base, url.strip())).url
        parts = urlsplit(joined)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        found = canonicalize_url(safe_url_string(joined))
    except ValueError:
        return None
    return found if len(found.encode()) <= 1024 else None


def links(html: bytes, base: str) -> list[str]:
    """Give what the page links to on its own site, canonical, each once, in the order of the page."""
    site = origin(base)
    found: dict[str, None] = {}
    tree = LexborHTMLParser(html)
    for node in tree.css("base[href]"):
        base = urljoin(base, node.attributes.get("href") or "")
        break
    for node in tree.css("a[href]"):
        url = canonical(node.attributes.get("href") or "", base)
        if url is not None and origin(url) == site:
            found[url] = None
    return list(found)


def origin(url: str) -> str:
    """Give scheme, host and port: what makes two pages of one site."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_html(content_type: str) -> bool:
    """Say whether a response may hold links."""
    return content_type.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")
