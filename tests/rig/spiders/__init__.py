"""Spiders for the tests of `timeoutq.scrapy`, the site that they crawl, and the storm that kills them.

`site.py` serves pages from the tests' own process, `mapping.py` has a spider for each thing that a request may be,
`run.py` runs spiders in a process of their own, `points.py` kills one at a given point, and `storm.py` kills many.
"""
