"""URLs for crawlers: one form for each page, hosts and domains, and sitemaps (extra `crawl`).

`cli/` and the demo call it, and so may your handlers: `Ack(put=[normalise(link, lease.task) for link in links])`.

The modules, in reading order: each imports only from those above it.

    normal    URLs in one form: one page has one id, in whatever spelling a link names the page. Pure.
    domains   The host of a URL, and its registrable domain: names for the groups of a polite queue.
    bodies    Unpacks the bodies of answers piece by piece, so that no layer of Content-Encoding can exceed its limit.
    sitemaps  The pages that a sitemap names (the protocol of sitemaps.org), on the web or in a file, in bounded memory.
"""

from timeoutq.urls.domains import async_domains_of, domain, domains_of, host
from timeoutq.urls.normal import normalise
from timeoutq.urls.sitemaps import Limits, Page, sitemap
from timeoutq.words.errors import BadSitemap, BadUrl

__all__ = [
    "BadSitemap",
    "BadUrl",
    "Limits",
    "Page",
    "async_domains_of",
    "domain",
    "domains_of",
    "host",
    "normalise",
    "sitemap",
]
