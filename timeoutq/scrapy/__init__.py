"""Scrapy on timeoutq: a project becomes distributed, and loses no request with a killed process, by one setting.

`ADDONS = {"timeoutq.scrapy.Addon": 100}` and `TIMEOUTQ_URL` are all that a project needs. Scrapy calls this room; the
core never does.

The modules, in reading order: each imports only from those above it.

    plan         The settings of a project, and a warning of those that cannot hold on a queue. Pure.
    carried      Values of `meta` and `cb_kwargs` in typed JSON, and back: dates, numbers, sets, tuples, bytes, items.
                 Pure.
    tasks        From a request of Scrapy to a task, and back: the id and the payload, which is JSON. Pure.
    engine       The parts of Scrapy's engine that this folder needs: some have no public name, or another in each
                 version.
    visits       A visit is one lease on its way through Scrapy: fetched, parsed, its items stored.
    opening      Opens the queue of a spider: a new queue becomes polite and gets the spider's name.
    seeds        The start of a spider, once for each queue: a task of its own, whose handler goes through the start
                 requests.
    stored       The item store: each process writes its items as JSON lines into a file of its own, before their page
                 is acked.
    crawl        One crawl in one process: Scrapy's scheduler, and a worker whose handler hands each lease to Scrapy.
    middlewares  The middlewares that the addon sets: for the output of callbacks, the downloader, and requests that are
                 no tasks.
    addon        The addon, by which a Scrapy project uses timeoutq. It reads the project's settings and sets Scrapy's.
    __main__     Joins the files of an item store: `python -m timeoutq.scrapy FOLDER > items.jsonl`.
    trial        Runs a spider against one page, without a queue, and lists all of the page that timeoutq would refuse.
"""

from timeoutq.scrapy.addon import Addon

__all__ = ["Addon"]
