"""The same crawl without a queue: link by link, in one process. What the demo's result is held against."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx

from demo.links import canonical, is_html, links, origin

AT_ONCE = 8


def traverse(start: str, retries: int = 5) -> tuple[set[str], set[str]]:
    """Give the pages reachable from `start` on its site: those done, and those that answered 4xx."""
    first = canonical(start)
    if first is None:
        raise ValueError(f"{start!r} is not an http or https address")
    seen = {first}
    done: set[str] = set()
    pages = [first]
    with (
        httpx.Client(follow_redirects=False, timeout=20.0, trust_env=False) as client,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        while pages:
            found = list(pool.map(partial(visit, client, retries), pages))
            done.update(page for page, targets in zip(pages, found, strict=True) if targets is not None)
            pages = list(dict.fromkeys(link for targets in found for link in targets or () if link not in seen))
            seen.update(pages)
    return done, seen - done


def visit(client: httpx.Client, retries: int, page: str) -> Sequence[str] | None:
    """Give the links of a page, or None if it answered 4xx."""
    response = client.get(page)
    for attempt in range(retries):
        if response.status_code < 500:
            break
        time.sleep(0.05 * (attempt + 1))
        response = client.get(page)
    if response.status_code >= 400:
        return None
    if response.is_redirect:
        target = canonical(response.headers.get("location", ""), page)
        return [target] if target is not None and origin(target) == origin(page) else []
    content_type = response.headers.get("content-type", "")
    return links(response.content, page, content_type) if is_html(content_type) else []
