"""Scrapy on timeoutq: a project becomes distributed, and loses no request with a killed process, by one setting.

`ADDONS = {"timeoutq.scrapy.Addon": 100}` and `TIMEOUTQ_URL` are all that a project needs. Scrapy calls this room; the
core never does. `plan.py` reads settings, `tasks.py` turns requests into tasks and back, `carried.py` the values in
them, `visits.py` follows one lease through Scrapy, `crawl.py` is the worker, `strays.py` puts requests of no page,
and `scheduler.py`, `middlewares.py` and `manners.py` are what Scrapy sees. `command.py` tells a crawl from
`scrapy shell`.
"""

from timeoutq.scrapy.addon import Addon

__all__ = ["Addon"]
