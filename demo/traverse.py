"""The same crawl without a queue: one page after the other, in one thread. What the demo's result is held against."""

from __future__ import annotations

import time

import httpx

from demo.links import canonical, is_html, links, origin


def traverse(start: str, retries: int = 5) -> tuple[set[str], set[str]]:
    """Give the pages reachable from `start` on its site: those done, and those that answered 4xx."""
    done: set[str] = set()
    failed: set[str] = set()
    first = canonical(start)
    if first is None:
        raise ValueError(f"{start!r} is not an http or https address")
    open_urls, seen = [first], {first}
    with httpx.Client(follow_redirects=False, timeout=20.0, trust_env=False) as client:
        while open_urls:
            url = open_urls.pop()
            response = client.get(url)
            for attempt in range(retries):
                if response.status_code < 500:
                    break
                time.sleep(0.05 * (attempt + 1))
                response = client.get(url)
            if response.status_code >= 400:
                failed.add(url)
                continue
            done.add(url)
            found: list[str] = []
            if response.is_redirect:
                target = canonical(response.headers.get("location", ""), url)
                found = [target] if target is not None and origin(target) == origin(url) else []
            elif is_html(response.headers.get("content-type", "")):
                found = links(response.content, url)
            for link in found:
                if link not in seen:
                    seen.add(link)
                    open_urls.append(link)
    return done, failed
