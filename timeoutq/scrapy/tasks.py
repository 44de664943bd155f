"""From a request of Scrapy to a task, and back: the id and the payload, which is JSON. Pure.

The id of a plain GET is its canonical URL. Other requests have their fingerprint in the fragment of the id, as in
`https://a.example/search#POST:1f0c…`: a canonical URL has no fragment, so the two never meet. The id of a GET has a
fingerprint, too, if its canonical URL is too long, if its meta says `verbatim_url`, and if the project has a
fingerprinter of its own. A payload holds only what the id and Scrapy's defaults do not say.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

from scrapy import Request, Spider
from scrapy.utils.httpobj import urlparse_cached
from w3lib.url import canonicalize_url

from timeoutq.scrapy import carried
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.hostname import host_of
from timeoutq.words.model import Task, raw

MOST_PRIORITY = 1000  # priorities beyond this, in either direction, count as this
LONGEST_URL = 900  # an id has at most 1 KiB: of a longer URL, the id holds the beginning and the fingerprint
LONGEST_KEPT = 2000
"""Canonical forms are kept for a while, but not those of longer URLs: the memory for them has a bound."""
CARRIED = ("cookies", "meta", "cb_kwargs", "flags")  # what a payload holds as `carried.py` packs it
USUAL = {"method": "GET", "encoding": "utf-8", "priority": 0, "dont_filter": False}  # Scrapy's defaults
KEYS = {*CARRIED, *USUAL, "url", "headers", "body", "body64", "callback", "errback", "closed", "turn", "class", "more"}
"""What a payload may hold."""
OURS = {"body64", "closed", "turn", "class", "more", "priority"}  # those of them that nobody writes by hand

Payload = dict[str, Any]


class MissingMethod(InvalidInput):
    """The spider lacks a method that a task names, or the project lacks a class."""


def base_id(request: Request, prints: Any, *, usual: bool) -> str:
    """Give the id of a request: two requests that Scrapy counts as one have the same id.

    `prints` is the crawler's `request_fingerprinter`; `usual` says that it is Scrapy's own, and not one of the project.
    """
    if usual and request.method == "GET" and not request.body and not request.meta.get("verbatim_url"):
        id = _canonical(request.url)
        if len(id) <= LONGEST_URL:
            return id
    mark = f"{request.method}:{prints.fingerprint(request).hex()}"
    if not usual:
        # two URLs may have one fingerprint: the id holds nothing else of the URL but its host
        scheme, _, rest = request.url.partition("//")
        return f"{scheme}//{re.split('[/?#]', rest, maxsplit=1)[0]}/#{mark}"
    return f"{_canonical(request.url)[:LONGEST_URL]}#{mark}"


def _canonical(url: str) -> str:
    return _kept_canonical(url) if len(url) <= LONGEST_KEPT else canonicalize_url(url)


_kept_canonical = lru_cache(maxsize=20_000)(canonicalize_url)


def fresh_id(base: str, parent: str, number: int) -> str:
    """Give the id of a request with `dont_filter`: another one for each, and the same if its parent runs again."""
    digest = sha256(raw(f"{parent}\n{number}\n{base}")).hexdigest()[:16]
    return f"{base}{',' if '#' in base else '#'}again:{digest}"


def payload_of(
    request: Request, spider: Spider, id: str, errback: Any, *, inherited: str | None = None
) -> tuple[Payload, str | None]:
    """Give the payload of a request, whose errback is `errback`, and its group if its meta names a `download_slot`.

    Scrapy writes `download_slot` into the meta of each request that it fetches, and spiders hand the meta on:
    `inherited` is the slot that came about so in the request of the visit, and no group that the spider has chosen.
    Raises `InvalidInput`, which names the request and the key, for what cannot travel.
    """
    found: Payload = {}
    if request.url != id:
        found["url"] = request.url
    if request.headers:
        found["headers"] = {
            name.decode("latin-1"): [value.decode("latin-1") for value in values]
            for name, values in _items(cast("dict[bytes, list[bytes]]", request.headers))
        }
    if request.body:
        try:
            found["body"] = request.body.decode("utf-8")
        except UnicodeDecodeError:
            found["body64"] = base64.b64encode(request.body).decode()
    slot: Any = request.meta.get("download_slot")
    if not isinstance(slot, str) or slot in (inherited, urlparse_cached(request).hostname or ""):
        slot = None
    for key in CARRIED:
        value: Any = getattr(request, key)
        if key == "meta":  # without what Scrapy notes there while it fetches
            noted = {"download_latency"} if slot else {"download_latency", "download_slot"}
            value = {name: one for name, one in value.items() if name not in noted}
        if value:
            found[key] = _carried(value, key, request)
    for key, function in (("callback", request.callback), ("errback", errback)):
        name = method_name(function, spider, key, request)
        if name is not None:
            found[key] = name
    found |= {key: value for key, usual in USUAL.items() if (value := getattr(request, key)) != usual}
    return found | _kind(request), slot


def task_of(request: Request, id: str, payload: Payload, group: str | None = None) -> Task:
    """Make the task of a request, with its payload packed; the priority of the request becomes that of the task.

    A queue takes priorities only of tasks that have a host or a group. Raises `InvalidInput`, which names the request,
    for what no queue takes: else the queue would refuse the whole call that puts the task.
    """
    priority = max(-MOST_PRIORITY, min(MOST_PRIORITY, int(payload.get("priority", 0)))) or None
    if not (group or host_of(raw(id))):
        priority = None
    try:
        body = arguments.pack(payload or None, id)
        arguments.tasks((Task(id, group=group),))
    except InvalidInput as refused:
        raise InvalidInput(f"{arguments.shown(request, 300)} cannot be put into the queue: {refused}") from None
    return Task(id, None if body is None else arguments.Packed(body), group, priority=priority)


def request_of(id: str, payload: Any, spider: Spider) -> Request:
    """Make the request of a task.

    Raises `MissingMethod` if the spider lacks its callback or errback, or the project a class, and
    `InvalidInput` for what is no task of a request.
    """
    if payload is None:
        payload = {}
    if not isinstance(payload, dict):
        raise InvalidInput(f"the payload of task {id!r} is no request of Scrapy: it is {type(payload).__name__}")
    given = cast("Payload", payload)
    unknown = sorted(map(str, given.keys() - KEYS))
    if unknown:
        raise InvalidInput(
            f"the payload of task {id!r} is no request of Scrapy: it has {', '.join(unknown)}; it may have "
            f"{', '.join(sorted(KEYS - OURS))}"
        )
    callback = method_of(given.get("callback"), spider, id, "callback")
    errback = method_of(given.get("errback"), spider, id, "errback")
    project = type(spider).__module__.partition(".")[0]
    try:
        headers = {
            name.encode("latin-1"): [value.encode("latin-1") for value in values]
            for name, values in given.get("headers", {}).items()
        }
        body = base64.b64decode(given["body64"]) if "body64" in given else given.get("body", "").encode()
        kind: type[Request] = Request
        if "class" in given:
            kind = carried.find_class(given["class"], project, lambda found: issubclass(found, Request))
        found = kind.__new__(kind)
        values: dict[str, Any] = {key: given.get(key, usual) for key, usual in USUAL.items()}
        values |= {key: carried.unpack(given.get(key), project) for key in CARRIED}
        # not by its own `__init__`, which has made the request once
        Request.__init__(
            found, given.get("url", id), callback=callback, errback=errback, headers=headers or None, body=body,
            **values,
        )  # fmt: skip
        for name, one in cast("dict[str, Any]", carried.unpack(given.get("more", {}), project)).items():
            object.__setattr__(found, name, one)
        return found
    except carried.NoSuchClass as missing:
        raise MissingMethod(
            f"the project of spider {spider.name!r} has no class {str(missing)!r} in this version, which the task "
            "carries: the task waits for a process whose project has the class"
        ) from None
    except (AttributeError, InvalidInput, RecursionError, TypeError, ValueError, binascii.Error) as error:
        raise InvalidInput(f"task {id!r} is no request of Scrapy: {error}") from None


# ---- callbacks


def method_name(function: Any, spider: Spider, key: str, request: Request) -> str | None:
    """Give the name of a method of the spider; None for none. Raises `InvalidInput` for any other function.

    The method may be static, of the class, or private: then its name is that which Python has made of `__name`.
    """
    if function is None:
        return None
    for name in (getattr(function, "__name__", ""), *_names_of(function, type(spider))):
        if _is_method(name, spider) and getattr(spider, name, None) == function:
            return name
    raise InvalidInput(
        f"the {key} of {request} must be a method of the spider, because only its name travels with the request: "
        f"{_what(function)} will not do. Give the spider a method, and pass it values in cb_kwargs"
    )


def _names_of(function: Any, kind: type) -> Iterator[str]:
    """Give the names under which the classes of a spider have a function."""
    bare = getattr(function, "__func__", function)
    for one in kind.__mro__:
        yield from (name for name, value in vars(one).items() if getattr(value, "__func__", value) is bare)


def _is_method(name: object, spider: Spider) -> bool:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("__"):
        return False
    held = inspect.getattr_static(type(spider), name, None)
    return callable(getattr(held, "__func__", held))


def callback_name(request: Request) -> str:
    """Give the name of the function that gets the response of a request, for a message."""
    return "parse" if request.callback is None else str(getattr(request.callback, "__name__", "a callback"))


def _what(function: Any) -> str:
    name = str(getattr(function, "__qualname__", type(function).__name__))
    if "<lambda>" in name:
        return "a lambda"
    if "<locals>" in name:
        return f"the nested function {name}"
    return f"{name} of {getattr(function, '__module__', '?')}"


def method_of(name: object, spider: Spider, id: str, key: str) -> Any:
    """Find the method of the spider with this name; None for no name. Raises `MissingMethod`."""
    if name is None:
        return None
    found = getattr(spider, str(name), None) if _is_method(name, spider) else None
    if not callable(found):
        raise MissingMethod(
            f"spider {spider.name!r} has no method {name!r} in this version, which is the {key} of the task: the task "
            "waits for a process whose spider has the method"
        )
    return found


# ---- what goes into JSON


_items = dict[bytes, list[bytes]].items  # Headers.items makes copies


def _kind(request: Request) -> Payload:
    """Give the class of a request that is no plain `Request`, and the attributes that only such a request has."""
    kind = type(request)
    if kind is Request:
        return {}
    more = {name: value for name, value in _state(request).items() if name not in _PLAIN and not hasattr(Request, name)}
    found = {"class": _carried(kind, "the request", request, carried.class_name)}
    return found | ({"more": _carried(more, "the request", request)} if more else {})


def _state(request: Request) -> dict[str, Any]:
    state: Any = object.__getstate__(request)
    own, slots = cast("tuple[Any, Any]", state) if isinstance(state, tuple) else (state, None)
    return {**(own or {}), **(slots or {})}


_PLAIN = _state(Request("data:,")).keys()


def _carried(value: Any, where: str, request: Request, pack: Callable[[Any, str], Any] = carried.pack) -> Any:
    try:
        return pack(value, where)
    except carried.Refused as refused:
        raise InvalidInput(
            f"{request} cannot be put into the queue: {refused.where} holds {refused} which cannot travel; pass text, "
            "numbers, dates, bytes, lists, sets, dicts and items"
        ) from None
    except RecursionError:
        raise InvalidInput(f"{request} cannot be put into the queue: {where} is nested too deep") from None
