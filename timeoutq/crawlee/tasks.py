"""From a request of crawlee to a task, and back: the id, the payload, which is JSON, and the group. Pure.

The id is the `unique_key`, or its SHA-256 if it is longer than an id may be. The payload holds what neither the id nor
the defaults of crawlee say. A task without a payload, such as a URL that was put by hand, is a plain request of its id.
"""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version

from timeoutq.words import arguments
from timeoutq.words.errors import InvalidInput, MissingExtra
from timeoutq.words.hostname import host_of
from timeoutq.words.model import Payload, Task, raw


def check_version() -> None:
    """Raise `MissingExtra` if crawlee is missing, or is a version with another interface."""
    try:
        found = version("crawlee")
    except PackageNotFoundError:
        raise MissingExtra(
            "timeoutq.crawlee needs the package crawlee, which is missing: pip install 'timeoutq[crawlee]'"
        ) from None
    major, minor = map(int, found.split(".")[:2])
    if major != 1 or minor < 11:
        raise MissingExtra(
            f"timeoutq.crawlee works with crawlee 1.11 and later, below 2, and this is crawlee {found}: "
            "pip install 'crawlee>=1.11,<2'"
        )


check_version()

from crawlee import Request  # noqa: E402  # the version is known to fit


def id_of(unique_key: str) -> str:
    """Give the id of the task of a request."""
    data = raw(unique_key)
    return unique_key if len(data) <= arguments.MAX_ID else f"sha256:{sha256(data).hexdigest()}"


_TIMES = {"handled_at"}  # the queue itself knows whether a request was handled
_USUAL = Request(url="http://a.example", unique_key="a").model_dump()  # the defaults of crawlee


def task_of(request: Request, *, priority: int | None = None, rerun: bool = False) -> Task:
    """Make the task of a request; on a polite queue it counts for the host of the request's URL.

    Raises `InvalidInput`, which names the request, for what cannot be JSON or is too long.
    """
    id = id_of(request.unique_key)
    usual = {**_USUAL, "url": id, "unique_key": id}
    try:
        given = {name: value for name, value in request.model_dump(exclude=_TIMES).items() if value != usual[name]}
        payload = arguments.pack(given, id)
    except ValueError as error:
        raise InvalidInput(
            f"request {arguments.shown(request.url)} cannot be put into the queue: {error}. user_data must hold what "
            "JSON holds, and payload must be text: write dates as text, and bytes in base64"
        ) from error
    assert payload is not None
    group = None
    if id != request.url and (host := host_of(raw(request.url))) != host_of(raw(id)):
        group = (host or b"").decode("utf-8", "replace") or None
    return Task(id, arguments.Packed(payload), group, priority=priority, rerun=rerun)


def request_of(id: str, payload: Payload) -> Request:
    """Make the request of a task. Raises `ValueError` for what is no task of a request."""
    if not isinstance(payload, dict | None):
        raise ValueError(f"the payload of a request is an object of JSON, not {arguments.shown(payload)}")
    request = Request.model_validate({"url": id, "unique_key": id, **(payload or {})})
    if id_of(request.unique_key) != id:
        raise ValueError(f"the unique_key {arguments.shown(request.unique_key)} is that of another task")
    return request
