"""The handler of the crawler: fetch a page, put its links and ack it in one step.

`timeoutq worker crawl demo.crawl:fetch` runs it. A page that answers 5xx, late or not at all is tried again as the
retry policy says; one that answers 4xx is given up; a redirect is a task of its own.
"""

from __future__ import annotations

import asyncio
import weakref

import httpx

from demo.links import canonical, is_html, links, origin
from timeoutq import Ack, GiveUp, Lease, Retry

TIMEOUT = 20.0
MOST_BYTES = 10 * 1024 * 1024

_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = weakref.WeakKeyDictionary()


def _client() -> httpx.AsyncClient:
    # one for the event loop that runs the handlers: connections to the site are kept and shared
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = httpx.AsyncClient(
            follow_redirects=False,
            headers={"User-Agent": "timeoutq-demo/1"},
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=32),
            timeout=TIMEOUT,
            trust_env=False,
        )
    return _clients[loop]


async def fetch(lease: Lease) -> Ack | None:
    """Fetch the page that the task names; give what it links to on its own site."""
    url = lease.task
    try:
        response = await _client().get(url)
    except httpx.TransportError as error:
        raise Retry(reason=f"{type(error).__name__}: {error}") from error
    if response.status_code >= 500 or response.status_code == 429:
        raise Retry(reason=f"HTTP {response.status_code}")
    if response.status_code >= 400:
        raise GiveUp(f"HTTP {response.status_code}")
    if response.is_redirect:
        target = canonical(response.headers.get("location", ""), url)
        return Ack(put=[target] if target is not None and origin(target) == origin(url) else [])
    if not is_html(response.headers.get("content-type", "")):
        return None
    if len(response.content) > MOST_BYTES:
        raise GiveUp(f"{len(response.content):,} bytes are too many")
    return Ack(put=links(response.content, url))
