"""Brings a sitemap from the web into a temporary file, within limits of time and of length. `sitemaps.py` calls it.

The whole of a download has one limit of time, which a server cannot stretch by sending a byte now and then.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import Callable, Mapping
from errno import EDQUOT, ENOSPC
from functools import lru_cache
from typing import IO

from timeoutq.errors import BadSitemap, MissingExtra
from timeoutq.urls.bodies import ACCEPTED, Body, Broken, TooLong, Unreadable

REDIRECTS = 5
"""How many redirects may lead to a sitemap."""
PAUSE = 20.0
"""How long a server may say nothing, seconds."""

try:
    import httpx
except ImportError as error:
    raise MissingExtra(
        f"sitemaps are fetched with the package {error.name}, which is missing: pip install 'timeoutq[crawl]'"
    ) from error


Transport = Callable[[], httpx.AsyncBaseTransport]
"""Makes what carries the requests of one download, such as a transport that connects to public addresses only."""


def fetch(url: str, seconds: float, sent: int, unpacked: int, transport: Transport | None = None) -> IO[bytes]:
    """Give what a URL answers, unpacked, in a temporary file, which is gone when it is closed.

    `sent` and `unpacked` are how many bytes may come, and how many they may unpack to. Raises `BadSitemap`, whose
    message is the reason.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        asyncio.run(_within(url, seconds, sent, unpacked, file, transport))
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def _within(
    url: str, seconds: float, sent: int, unpacked: int, file: IO[bytes], transport: Transport | None
) -> None:
    try:
        async with asyncio.timeout(seconds):
            await _download(url, sent, unpacked, file, transport)
    except TimeoutError:
        raise BadSitemap(f"it was not there after {seconds:g} s") from None
    except (TooLong, Unreadable, Broken) as error:
        raise BadSitemap(str(error)) from error
    except httpx.TooManyRedirects as error:
        raise BadSitemap(f"it redirects more than {REDIRECTS} times") from error
    except BadSitemap:
        raise
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # a ValueError: the host of a redirect
        raise BadSitemap(f"it cannot be fetched: {error or type(error).__name__}") from error
    except OSError as error:
        cure = "; free some space for temporary files" if error.errno in (ENOSPC, EDQUOT) else ""
        raise BadSitemap(f"it cannot be fetched: {error.strerror or error}{cure}") from error


async def _download(url: str, sent: int, unpacked: int, file: IO[bytes], transport: Transport | None) -> None:
    client = httpx.AsyncClient(
        verify=_trust(), follow_redirects=True, max_redirects=REDIRECTS, timeout=PAUSE, headers=_headers(),
        transport=transport() if transport is not None else None,
    )  # fmt: skip
    async with client, client.stream("GET", url) as response:
        if response.status_code != 200:
            raise BadSitemap(f"the server answers HTTP {response.status_code}")
        body = Body(response.headers.get("content-encoding", ""), unpacked)
        count = 0
        async for data in response.aiter_raw():
            count += len(data)
            if count > sent:
                raise TooLong(f"it has more than {sent:,} bytes")
            for piece in body.feed(data):
                file.write(piece)
                await asyncio.sleep(0)  # so that the limit of time holds while it is unpacked, too
        if not body.ended:
            raise Broken("it ends before its Content-Encoding does")


def _headers() -> Mapping[str, str]:
    import timeoutq

    return {"User-Agent": f"timeoutq/{timeoutq.__version__}", "Accept": "*/*", "Accept-Encoding": ACCEPTED}


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # it takes a while to make
