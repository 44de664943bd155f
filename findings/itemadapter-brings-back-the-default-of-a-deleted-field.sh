#!/usr/bin/env bash
# itemadapter 0.13.1, Scrapy 2.19.0.
#
# A pipeline deletes a wrong price: del ItemAdapter(item)["price"]. One would guess that the field is gone from the feed,
# as it is where the item is a scrapy.Item. With a dataclass, that depends on how the default was declared: itemadapter
# deletes the attribute of the object, and a plain default (0.0) is also an attribute of the class, which shows through.
# So the feed has a price of 0.0, which no page had; "price" in the adapter is True, and to delete it once more is a
# KeyError. A field with default_factory, or without a default, is gone.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check itemadapter==0.13.1 scrapy==2.19.0
"$work/venv/bin/python" - <<'PY'
import io
from dataclasses import dataclass, field

import scrapy
from itemadapter import ItemAdapter
from scrapy.exporters import JsonLinesItemExporter


class Item(scrapy.Item):
    title = scrapy.Field()
    price = scrapy.Field()


@dataclass
class Plain:
    title: str
    price: float = 0.0


@dataclass
class Factory:
    title: str
    price: float = field(default_factory=float)


seen = {}
for kind in (Item, Plain, Factory):
    item = kind(title="a book", price=12.5)
    adapter = ItemAdapter(item)
    del adapter["price"]
    feed = io.BytesIO()
    JsonLinesItemExporter(feed).export_item(item)
    seen[kind] = feed.getvalue().decode().strip()
    print(f"{kind.__name__}, price deleted: {seen[kind]}")
    if kind is Plain:
        assert "price" in adapter
        try:
            del adapter["price"]
        except KeyError as error:
            print(f"{kind.__name__}, price deleted again: KeyError: {error}")
        else:
            raise AssertionError("deleted twice")
without = '{"title": "a book"}'
assert seen == {Item: without, Plain: '{"title": "a book", "price": 0.0}', Factory: without}
PY
# seen:
#   Item, price deleted: {"title": "a book"}
#   Plain, price deleted: {"title": "a book", "price": 0.0}
#   Plain, price deleted again: KeyError: 'price'
#   Factory, price deleted: {"title": "a book"}
