"""A crawler on timeoutq, small enough to read and real enough to use: `python -m demo`.

Copy from it what you need. A handler of your own needs the first group; the second makes it safe against hostile pages.

    crawl      the handler, and its lifespan: from a lease to an `Ack`
    fetcher    pages and robots.txt over HTTP, within limits
    trail      the payload of a task: how a page was found, what was seen of it
    links      a page's links; the one form of an address
    scope      which addresses belong to the crawl
    outside    how many addresses the patterns have left out
    polite     what the handler asks of the queue's politeness
    robots, pauses         what a site asks for: robots.txt, Retry-After
    settings   what a crawl may do, on its way to the worker processes

    addresses  connects to public addresses only
    bounded, parser        pages are parsed in a process that can be killed

    warc, exchange         the archive: WARC files that survive kill -9
    results    a line of JSON for each page
    seeds      first pages and sitemaps

    command, options       the words of the command line
    course, place, processes, outage, attended   a crawl from its first page to the verdict
    summary, report        what it did, and how that is told
    site, hosts, traverse, verdict   what the demo crawls without a URL, and how it is judged
"""
