"""The spider of the storm: it crawls all pages of a site, and stores what it found on each. It knows no queue."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import scrapy


class Store:
    def process_item(self, item: Any, spider: Any = None) -> Any:
        out = os.open(os.environ["ITEMS"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(out, json.dumps(item, sort_keys=True).encode() + b"\n")
        os.close(out)
        return item


class Docs(scrapy.Spider):
    name = "docs"
    custom_settings = {"ITEM_PIPELINES": {"tests.rig.spiders.docs.Store": 1}}

    def __init__(self, site: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [site]

    def parse(self, response: Any) -> Any:
        links = response.css("a::attr(href)").getall()
        yield {
            "page": response.url.split("#")[0].partition("//")[2].partition("/")[2],
            "title": response.css("title::text").get(),
            "text": hashlib.sha256(response.body).hexdigest()[:16],
            "links": len(links),
        }
        for link in links:
            url = response.urljoin(link).split("#")[0]
            if url.startswith(self.start_urls[0].rpartition("/")[0]) and url.endswith(".html"):
                yield scrapy.Request(url)
