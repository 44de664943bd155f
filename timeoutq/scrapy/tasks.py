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
from typing import Any, Protocol, cast

from scrapy import Request, Spider
from w3lib.url import canonicalize_url

from timeoutq.scrapy import carried
from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput
from timeoutq.words.model import Task, raw

MOST_PRIORITY = 1000  # priorities beyond this, in either direction, count as this
LONGEST_URL = 900  # an id has at most 1 KiB: of a longer URL, the id holds the beginning and the fingerprint
LONGEST_KEPT = 2000
"""Canonical forms are kept for a while, but not those of longer URLs: the memory for them has a bound."""
RUNTIME = {"download_latency"}
"""Keys of meta that Scrapy sets while it fetches, and that mean nothing for another request."""
KEYS = {
    "url", "method", "headers", "body", "body64", "cookies", "meta", "cb_kwargs", "callback", "errback", "encoding",
    "flags", "dont_filter", "priority", "closed", "turn", "class", "more",
}  # fmt: skip
"""What a payload may hold."""

Payload = dict[str, Any]


class MissingMethod(InvalidInput):
    """The spider lacks a method that a task names, or the project lacks a class."""


class Fingerprinter(Protocol):
    """What makes the fingerprint of a request: the crawler's `request_fingerprinter`."""

    def fingerprint(self, request: Request) -> bytes:
        """Give the fingerprint."""
        ...


def canonical(url: str) -> str:
    """Give the canonical form of a URL, without its fragment, as Scrapy's fingerprints take it."""
    return _canonical(url) if len(url) <= LONGEST_KEPT else canonicalize_url(url)


@lru_cache(maxsize=20_000)
def _canonical(url: str) -> str:
    return canonicalize_url(url)


def base_id(request: Request, prints: Fingerprinter, *, usual: bool) -> str:
    """Give the id of a request: two requests that Scrapy counts as one have the same id.

    `usual` says that the project uses Scrapy's own fingerprinter, and not one of the project.
    """
    if usual and request.method == "GET" and not request.body and not request.meta.get("verbatim_url"):
        id = canonical(request.url)
        if len(id) <= LONGEST_URL:
            return id
    mark = f"{request.method}:{prints.fingerprint(request).hex()}"
    if not usual:
        # two URLs may have one fingerprint: the id holds nothing else of the URL but its host
        return f"{request.url.partition('//')[0]}//{_authority(request.url)}/#{mark}"
    return f"{canonical(request.url)[:LONGEST_URL]}#{mark}"


def fresh_id(base: str, parent: str, number: int) -> str:
    """Give the id of a request with `dont_filter`: another one for each, and the same if its parent runs again."""
    digest = sha256(raw(f"{parent}\n{number}\n{base}")).hexdigest()[:16]
    return f"{base}{',' if '#' in base else '#'}again:{digest}"


def payload_of(
    request: Request, spider: Spider, id: str, errback: Any, *, inherited: str | None = None
) -> tuple[Payload, str | None]:
    """Give the payload of a request, whose errback is `errback`, and its group if its meta names a `download_slot`.

    Scrapy writes `download_slot` into the meta of each request that it fetches, and spiders hand the meta on:
    `inherited` is the slot that came about so in the request of the visit. It is not a group that the spider has
    chosen.

    Raises `InvalidInput`, which names the request and the key, for what cannot travel, and for a callback that is no
    method of the spider.
    """
    found: Payload = {}
    if request.url != id:
        found["url"] = request.url
    if request.method != "GET":
        found["method"] = request.method
    if request.headers:
        found["headers"] = _headers(request)
    if request.body:
        _put_body(found, request.body)
    if request.cookies:
        found["cookies"] = _carried(request.cookies, "cookies", request)
    meta, slot = _meta(request, inherited)
    if meta:
        found["meta"] = _carried(meta, "meta", request)
    if request.cb_kwargs:
        found["cb_kwargs"] = _carried(request.cb_kwargs, "cb_kwargs", request)
    for key, function in (("callback", request.callback), ("errback", errback)):
        name = method_name(function, spider, key, request)
        if name is not None:
            found[key] = name
    if request.encoding != "utf-8":
        found["encoding"] = request.encoding
    if request.flags:
        found["flags"] = _carried(request.flags, "flags", request)
    if request.dont_filter:
        found["dont_filter"] = True
    if request.priority:
        found["priority"] = int(request.priority)
    found |= _kind(request)
    return found, slot


def task_of(request: Request, id: str, payload: Payload, group: str | None = None) -> Task:
    """Make the task of a request, with its payload packed.

    This is the one place where the priority of a request becomes that of a task. A queue takes priorities only of tasks
    that have a host or a group.

    Raises `InvalidInput`, which names the request, for what no queue takes. Else the queue would refuse the whole call
    that puts the task, and with it the other tasks of the call.
    """
    priority = priority_of(payload)
    if not (group or has_host(id)):
        priority = None
    try:
        body = arguments.pack(payload or None, id)
        if group is None:
            arguments.task_id(id)
        else:
            arguments.tasks((Task(id, group=group),))
    except InvalidInput as refused:
        raise InvalidInput(f"{arguments.shown(request, 300)} cannot be put into the queue: {refused}") from None
    return Task(id, None if body is None else arguments.Packed(body), group, priority=priority)


def priority_of(payload: Payload) -> int | None:
    """Give the priority of a task: that of its request, from -1000 to 1000; None for 0, which is that of any task."""
    return max(-MOST_PRIORITY, min(MOST_PRIORITY, int(payload.get("priority", 0)))) or None


def has_host(id: str) -> bool:
    """Say whether the queue surely finds a host in an id; false for `data:` and `file:///`, and for what looks odd."""
    found = _AUTHORITY.match(id)
    if found is None:
        return False
    first = found[1].rpartition("@")[2][:1]
    return first > " " and first not in _NO_NAME


_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#\\]*)")
_NO_NAME = ".:\u3002"  # dots and a port may be all that stands where a name is expected; then there is none


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
        raise InvalidInput(f"the payload of task {id!r} is no request of Scrapy: it has {', '.join(unknown)}")
    callback = method_of(given.get("callback"), spider, id, "callback")
    errback = method_of(given.get("errback"), spider, id, "errback")
    project = type(spider).__module__.partition(".")[0]

    def value(key: str) -> Any:
        return carried.unpack(given.get(key), project)

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
        # not by its own `__init__`, which has made the request once
        Request.__init__(
            found,
            given.get("url", id),
            callback=callback,
            errback=errback,
            method=given.get("method", "GET"),
            headers=headers or None,
            body=body,
            cookies=value("cookies"),
            meta=value("meta"),
            encoding=given.get("encoding", "utf-8"),
            priority=given.get("priority", 0),
            dont_filter=given.get("dont_filter", False),
            flags=value("flags"),
            cb_kwargs=value("cb_kwargs"),
        )
        for name, one in cast("dict[str, Any]", value("more") or {}).items():
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
    name = getattr(function, "__name__", "")
    for one in (name, *_names_of(function, type(spider))):
        if is_name(one) and getattr(spider, one, None) == function and _is_method(one, spider):
            return str(one)
    raise InvalidInput(
        f"the {key} of {request} must be a method of the spider, because only its name travels with the request: "
        f"{_what(function)} will not do. Give the spider a method, and pass it values in cb_kwargs"
    )


def _names_of(function: Any, kind: type) -> Iterator[str]:
    """Give the names under which the classes of a spider have a function."""
    bare = getattr(function, "__func__", function)
    for one in kind.__mro__:
        yield from (name for name, value in vars(one).items() if getattr(value, "__func__", value) is bare)


def _is_method(name: str, spider: Spider) -> bool:
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
    found = getattr(spider, name, None) if isinstance(name, str) and is_name(name) else None
    if not callable(found) or not _is_method(str(name), spider):
        raise MissingMethod(
            f"spider {spider.name!r} has no method {name!r} in this version, which is the {key} of the task: the task "
            "waits for a process whose spider has the method"
        )
    return found


def is_name(name: str) -> bool:
    """Say whether this may be the name of a callback."""
    return name.isidentifier() and not name.startswith("__")


# ---- what goes into JSON


_items = dict[bytes, list[bytes]].items  # Headers.items makes copies


def _headers(request: Request) -> dict[str, list[str]]:
    headers = _items(cast("dict[bytes, list[bytes]]", request.headers))
    return {name.decode("latin-1"): [value.decode("latin-1") for value in values] for name, values in headers}


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


def _put_body(found: Payload, body: bytes) -> None:
    try:
        found["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        found["body64"] = base64.b64encode(body).decode()


def _meta(request: Request, inherited: str | None) -> tuple[dict[str, Any], str | None]:
    meta = request.meta
    slot = meta.get("download_slot")
    keeps_slot = isinstance(slot, str) and slot != inherited and slot != _host(request.url)
    dropped = RUNTIME if keeps_slot else RUNTIME | {"download_slot"}
    return {key: value for key, value in meta.items() if key not in dropped}, slot if keeps_slot else None


def _host(url: str) -> str:
    return _authority(url).rpartition("@")[2].partition(":")[0].lower()


def _authority(url: str) -> str:
    """Give what stands before the path of a URL: the host, and the user and the port, if there are any."""
    return re.split("[/?#]", url.partition("//")[2], maxsplit=1)[0]


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
