"""Tests of `timeoutq.scrapy`: real spiders in processes of their own, on a real server and a site on loopback."""
