"""Spiders for the tests of `timeoutq.scrapy`, the site that they crawl, and the storm that kills them."""
