"""A request of crawlee as a task, and back; what cannot be one says so."""

from __future__ import annotations

import datetime
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from crawlee import Request

from timeoutq import InvalidInput, MissingExtra
from timeoutq.crawlee import tasks
from timeoutq.crawlee.tasks import id_of, request_of, task_of
from timeoutq.words.arguments import unpack

URL = "https://a.example/x"


def back(request: Request) -> Request:
    task = task_of(request)
    return request_of(task.task, unpack(task.payload))


def test_a_plain_url_is_its_own_task() -> None:
    task = task_of(Request.from_url(URL))
    assert (task.task, task.payload, task.group) == (URL, b"{}", None)
    assert request_of(URL, None) == request_of(URL, {}) == Request.from_url(URL)  # put by hand


def test_all_of_a_request_comes_back() -> None:
    request = Request.from_url(
        "https://a.example/x?b=1&a=2#f", method="POST", payload="q=ä", headers={"x-a": "b"}, label="item",
        user_data={"n": [1, None, {"deep": 0.5}]}, max_retries=7, session_id="s1", enqueue_strategy="same-domain",
        use_extended_unique_key=True,
    )  # fmt: skip
    request.retry_count, request.no_retry, request.crawl_depth, request.forefront = 2, True, 3, True
    request.session_rotation_count = 1
    found = back(request)
    assert found.model_dump() == request.model_dump()
    assert (found.label, found.max_retries, found.session_id, found.crawl_depth) == ("item", 7, "s1", 3)


def test_a_request_whose_key_is_no_url_counts_for_the_host_of_its_url() -> None:
    post = Request.from_url("https://A.example:443/x", method="POST", payload="1", use_extended_unique_key=True)
    assert task_of(post).group == "a.example"
    assert task_of(Request.from_url("https://a.example/x", unique_key="https://b.example/")).group == "a.example"


def test_a_key_of_more_than_a_kibibyte_is_its_digest() -> None:
    longest = Request.from_url(URL, unique_key="ä" * 512)
    assert task_of(longest).task == longest.unique_key
    one_letter_more = Request.from_url(URL, unique_key="ä" * 513)  # fewer characters than 1,024, and more bytes
    assert task_of(one_letter_more).task == id_of(one_letter_more.unique_key) != one_letter_more.unique_key
    longer = Request.from_url(f"{URL}?{'q' * 1024}")
    task = task_of(longer)
    assert task.task == id_of(longer.unique_key) != longer.unique_key
    assert len(task.task) == len("sha256:") + 64
    assert (back(longer).unique_key, back(longer).url, task.group) == (longer.unique_key, longer.url, "a.example")


@pytest.mark.parametrize(
    "value", [datetime.date(2027, 1, 1), object(), {1}, b"\xff", float("nan")], ids=lambda value: type(value).__name__
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_user_data_that_is_no_json_is_refused(value: Any) -> None:
    request = Request.from_url(URL)
    request.user_data["when"] = value
    with pytest.raises(
        InvalidInput, match=r"'https://a\.example/x' cannot be put into the queue: .*write dates as text"
    ):
        task_of(request)


def test_a_payload_of_bytes_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cannot be put into the queue: .*bytes in base64"):
        task_of(Request.from_url(URL, payload=b"\xff\x00"))


@pytest.mark.parametrize("payload", [[1], b"x", {"unique_key": "another"}, {"url": "ftp://a.example"}], ids=str)
def test_what_is_no_request_is_refused(payload: Any) -> None:
    with pytest.raises(ValueError, match=r"object of JSON|another task|url"):
        request_of(URL, payload)
    with pytest.raises(ValueError, match="url"):
        request_of("no url", None)


def test_another_major_version_of_crawlee_says_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in ("2.0.0", "0.6.12", "1.10.4"):
        monkeypatch.setattr(tasks, "version", lambda name, found=found: found)
        with pytest.raises(MissingExtra, match=rf"this is crawlee {found}: pip install 'crawlee>=1\.11,<2'"):
            tasks.check_version()
    for found in ("1.11.0", "1.12.0b2"):
        monkeypatch.setattr(tasks, "version", lambda name, found=found: found)
        tasks.check_version()

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(tasks, "version", missing)
    with pytest.raises(MissingExtra, match=r"pip install 'timeoutq\[crawlee\]'"):
        tasks.check_version()
