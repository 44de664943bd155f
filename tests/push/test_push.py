"""The worker that posts tasks to a webhook: what it sends, and what each answer of the receiver means for the task."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import ssl
import time
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.rig import receiver as rig
from tests.rig.certificates import Certificates
from tests.rig.command import Say, say
from tests.rig.processes import Processes, run
from tests.rig.receiver import OK, SECRET, Answering, Message, Receiver, endless, hangs, receiving, resets, says, status
from tests.rig.waiting import wait_until
from tests.worker.working import ended
from timeoutq import AsyncQueue, InvalidInput, Lease, Queue, Task, Worker
from timeoutq.gateway.push import Poster, Push, read_secrets, read_target
from timeoutq.gateway.push import message as messages
from timeoutq.gateway.push.message import read_secret
from timeoutq.gateway.push.posting import Answer, Checked, NotDelivered, resolve
from timeoutq.gateway.push.pushing import Busy, Endpoint, Gone, meaning

__all__ = ["run", "say"]

KEY = read_secret(SECRET)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as found:
        yield found


async def pushed(
    url: str, name: str, receiver: Receiver, *, retry: Any = (), seconds: float = 5.0, network: Checked | None = None,
    to: str = "", **settings: Any,
) -> None:  # fmt: skip
    """Push a queue until it is drained."""
    target = read_target(to or receiver.url, private=True)
    poster = partial(Poster, target, concurrency=4, seconds=seconds, network=network)
    async with AsyncQueue(name, url, retry=list(retry)) as queue:
        worker = Worker(queue, Push(poster, [KEY], **settings), concurrency=4, burst=True, signals=False)
        await ended(worker.run(), 20)


# ---- what is sent


async def test_a_task_is_posted_with_its_payload_and_a_signature_and_is_done(
    url: str, queue: Queue, receiver: Receiver
) -> None:
    queue.put(Task("a@example.com", {"name": "Ä", "n": 2**60}), "plain")
    await pushed(url, queue.name, receiver)
    assert queue.states("a@example.com", "plain").counts() == {"done": 2}
    first = next(one for one in receiver.messages if one.told["task"] == "a@example.com")
    assert {**first.told, "fence": 0} == {
        "queue": queue.name, "task": "a@example.com", "attempt": 1, "fence": 0, "payload": {"name": "Ä", "n": 2**60},
    }  # fmt: skip
    assert first.told["fence"].isdecimal()
    assert first.headers["content-type"] == "application/json"
    assert first.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert first.headers["user-agent"].startswith("timeoutq/")
    assert all(one.is_signed for one in receiver.messages)


def lease(task: str, fence: int = 5) -> Lease:
    return Lease(task, "t", 0.0, 1, fence=fence)


BODIES = [
    ("a", None, ("a", None)),
    ("a", b'{"x": "\\ud800"}', ("a", {"x": "\ud800"})),
    ("\udcff\udc80", b"1", ({"b64": "/4A="}, 1)),
    ("a", b"\0\xff", ("a", {"b64": "/w=="})),
    ("a", b"[NaN]", ("a", {"b64": base64.b64encode(b"[NaN]").decode()})),
    ("a", b"[" * 100_000, ("a", {"b64": base64.b64encode(b"[" * 100_000).decode()})),
]


def test_whatever_an_id_and_a_payload_are_the_body_is_json() -> None:
    for task, stored, told in BODIES:
        body = messages.body("q", lease(task), stored)
        found = json.loads(body)
        assert (found["task"], found["payload"]) == told
        assert body.isascii()


def test_the_id_of_a_message_is_the_same_when_it_is_sent_again_and_another_for_another_payload() -> None:
    ids = [messages.message_id("q", lease("a", fence), b"1") for fence in (5, 6)]
    assert ids[0] == ids[1]
    given = [("q", "a", b"1"), ("q", "a", b"2"), ("q", "a", None), ("q", "a1", None), ("qa", "1", None)]
    others = {messages.message_id(queue, lease(task), stored) for queue, task, stored in given}
    assert len(others) == 5
    assert all(len(one) == 28 and one.isascii() for one in others)


# ---- what answers mean


def test_each_status_means_one_thing() -> None:
    meanings = {
        type(None): (200, 201, 204, 299), Gone: (410,), Busy: (429, 502, 503, 504),
        NotDelivered: (100, 101, 301, 304, 308, 400, 401, 404, 500, 501, 505, 599),
    }  # fmt: skip
    for means, codes in meanings.items():
        for code in codes:
            found = meaning(Answer(code, location="http://127.0.0.1/", text="\x1b[2J\nno"), 0.0)
            assert type(found) is means
            if isinstance(found, NotDelivered | Gone):
                assert str(code) in found.reason
                assert "\x1b" not in found.reason


def test_retry_after_is_seconds_or_a_date_and_is_bounded() -> None:
    date = formatdate(1_000_060, usegmt=True)
    for header, seconds in (("30", 30.0), ("0", None), ("99999999", 3600.0), (date, 60.0), ("soon", None)):
        assert meaning(Answer(503, header), 1_000_000.0) == Busy(503, seconds)


ANSWERS: dict[str, tuple[Answering, str, str | None]] = {
    "yes": (says(OK), "done", None),
    "yes, and lies about its length": (rig.lies(), "done", None),
    "yes, without end": (endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000), "done", None),
    "gone": (says(status(410, body=b"never\nagain")), "failed", "Gone: the receiver answers HTTP 410, gone: never"),
    "error": (says(status(500, body=b"\n  oh \x1b[2J\nmore")), "failed", r"HTTP 500: oh \x1b[2J"),
    "redirect": (
        says(status(302, "Location: http://169.254.169.254/latest")), "failed",
        "HTTP 302 to http://169.254.169.254/latest; a push follows no redirect: give the new URL with --to",
    ),
    "hangs": (hangs, "failed", "has not answered within 0.3 s"),
    "headers without end": (
        endless(b"HTTP/1.1 200 OK\r\n", b"X-Long: " + b"y" * 5000 + b"\r\n"), "failed", "does not answer in HTTP",
    ),
    "resets": (resets, "failed", "the connection broke"),
    "error without end": (endless(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 10_000), "failed", "HTTP 500: xxx"),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "state", "said"), ANSWERS.values(), ids=ANSWERS)
async def test_whatever_the_receiver_does_the_task_ends_and_says_why(
    url: str, queue: Queue, receiver: Receiver, answer: Answering, state: str, said: str | None
) -> None:
    receiver.answer = answer
    queue.put("a")
    late = said is not None and "within 0.3 s" in said
    async with asyncio.timeout(20):
        await pushed(url, queue.name, receiver, seconds=0.3 if late else 8.0)
    info = queue.inspect("a")
    assert info.state == state
    assert said is None or said in (info.error or "")
    assert len(receiver.messages) == 1
    assert info.traceback is None


async def test_no_more_than_64_kib_of_an_answer_are_read(receiver: Receiver) -> None:
    receiver.answer = endless(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 10_000)
    async with Poster(read_target(receiver.url, private=True), concurrency=1, seconds=10) as poster, asyncio.timeout(5):
        answer = await poster.post({}, b"{}")  # which has no end
    assert (answer.status, len(answer.text)) == (500, 65_536)


async def test_a_failed_attempt_is_sent_again_with_the_same_id_and_the_next_number(
    url: str, queue: Queue, receiver: Receiver
) -> None:
    async def answer(message: Message, writer: asyncio.StreamWriter) -> None:
        await says(status(500) if message.told["attempt"] < 3 else OK)(message, writer)

    receiver.answer = answer
    queue.put("a")
    await pushed(url, queue.name, receiver, retry=[0.01, 0.01])
    assert [one.told["attempt"] for one in receiver.messages] == [1, 2, 3]
    assert len({one.headers["webhook-id"] for one in receiver.messages}) == 1
    assert all(one.is_signed for one in receiver.messages)
    assert queue.inspect("a").state == "done"


# ---- a busy receiver


async def test_a_busy_receiver_is_left_alone_for_as_long_as_it_asks_and_then_tried_with_one_task(
    url: str, queue: Queue, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    at: list[float] = []

    async def answer(message: Message, writer: asyncio.StreamWriter) -> None:
        at.append(time.monotonic())
        if len(at) == 1:
            await asyncio.sleep(0.05)
        await says(status(503, "Retry-After: 1") if len(at) <= 4 else OK)(message, writer)

    receiver.answer = answer
    queue.put([f"t{i}" for i in range(50)])
    await pushed(url, queue.name, receiver, seconds=5)
    assert queue.stats().done == 50
    assert queue.inspect("t0").failures == 0
    busy = at[:4]
    gap = next(one for one in at if one > busy[-1]) - busy[0]
    assert gap >= 0.9
    said = [record.getMessage() for record in caplog.records if "the receiver" in record.getMessage()]
    assert said == [
        f"queue {queue.name}: the receiver {receiver.url} answers HTTP 503: nothing is sent for 1 s, as it asks",
        f"queue {queue.name}: the receiver {receiver.url} is not busy any more: tasks are sent",
    ]
    assert len(receiver.messages) <= 50 + 4
    assert queue.stats().counters["released"] < 50, "while the receiver is blocked, the worker leaves the rest alone"


async def test_a_task_that_a_busy_receiver_holds_up_for_too_long_is_a_failed_attempt(
    url: str, queue: Queue, receiver: Receiver
) -> None:
    receiver.answer = says(status(429, "Retry-After: 0.01"))
    queue.put("a")
    await pushed(url, queue.name, receiver, patience=0.3)
    info = queue.inspect("a")
    assert (info.state, info.failures) == ("failed", 1)
    assert "the receiver has taken nothing for 0.3 s: it answers HTTP 429" in (info.error or "")
    assert 2 <= len(receiver.messages) < 10, "each block lasts for a tenth of a second at least"


def test_blocks_grow_until_a_task_is_taken_and_one_task_at_a_time_tries() -> None:
    endpoint = Endpoint()
    assert endpoint.try_begin(0) and endpoint.try_begin(0)
    assert endpoint.busy(0, 10, None) == 1
    assert endpoint.busy(5, 10.2, None) is None, "what was under way tells nothing new"
    assert endpoint.left(10.2) == pytest.approx(0.8)
    assert not endpoint.try_begin(10.9)
    assert endpoint.try_begin(11)
    assert not endpoint.try_begin(11), "one task tries"
    assert [endpoint.busy(at, at, None) for at in (11, 20, 30, 40, 50, 120, 200)] == [2, 4, 8, 16, 32, 60, 60]
    assert endpoint.busy(300, 300, 99_999) == 3600
    assert endpoint.busy(299, 301, 3600) is None
    assert endpoint.left(301) == 3600, "what was under way may ask for more"
    assert endpoint.try_begin(5000)
    endpoint.given_up(5000)
    assert endpoint.try_begin(5001)
    assert endpoint.taken(5001, 5002)
    assert not endpoint.taken(5001, 5002)
    assert endpoint.try_begin(5002) and endpoint.try_begin(5002)
    assert endpoint.busy(5003, 5003, 0.0) == 0.1


def test_what_was_sent_before_a_block_neither_ends_it_nor_lets_a_second_task_try() -> None:
    endpoint = Endpoint()
    assert endpoint.busy(5, 10, None) == 1
    assert not endpoint.taken(4, 10.5), "it was sent before the block"
    assert endpoint.try_begin(11)
    assert not endpoint.taken(4, 11.1)
    endpoint.given_up(4)
    assert endpoint.busy(4, 11.2, None) is None
    assert not endpoint.try_begin(11.3), "the task that tries is still under way"
    assert endpoint.busy(11, 12, None) == 2, "the second block in a row"
    assert endpoint.try_begin(14)
    assert endpoint.taken(14, 15)


# ---- TLS, and the command


async def test_over_tls_the_name_of_the_url_is_in_the_handshake_and_in_the_host_header(
    url: str, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path / "ca")
    context, names = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), list[str]()
    context.load_cert_chain(*certificates.issue("hook", "hook.example"))
    context.sni_callback = lambda _, name, __: names.append(str(name))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))

    async def lead(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "hook.example" else await resolve(host, port)

    with receiving(Receiver(tls=context)) as receiver:
        queue.put("a")
        network = Checked(private=True, resolve=lead)
        await pushed(url, queue.name, receiver, to=f"https://hook.example:{receiver.port}/x?y=1", network=network)
        assert queue.inspect("a").state == "done"
        assert names == ["hook.example"]
        (message,) = receiver.messages
        assert (message.headers["host"], message.path) == (f"hook.example:{receiver.port}", "/x?y=1")
        queue.put("b")
        network = Checked(private=True, resolve=lambda *_: resolve("127.0.0.1", 0))
        await pushed(url, queue.name, receiver, to=f"https://other.example:{receiver.port}/", network=network)
        assert "cannot be reached" in (queue.inspect("b").error or "")
        assert len(receiver.messages) == 1


def secret_file(folder: Path, text: str = SECRET) -> Path:
    file = folder / "secret"
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_redisched_push_row_push_to_a_webhook(queue: Queue, run: Processes, receiver: Receiver, tmp_path: Path) -> None:
    words = ("push", queue.name, "--to", receiver.url, "--secret-file", str(secret_file(tmp_path)), "--allow-private")
    process = run.start(*words, "--concurrency", "2")
    queue.put(Task("a", {"n": 1}), "b")
    wait_until(lambda: queue.stats().done == 2, 60)
    assert sorted(receiver.tasks()) == ["a", "b"]
    assert all(one.is_signed for one in receiver.messages)
    receiver.answer = hangs
    queue.put("c")
    wait_until(lambda: len(receiver.messages) == 3, 30)
    receiver.answer = says(OK)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0, run.log(process)
    assert queue.inspect("c").state == "todos", "Ctrl-C gives back at once"
    log = run.log(process)
    assert f"queue {queue.name}: tasks are posted to {receiver.url}" in log
    assert SECRET.partition("_")[2] not in log
    assert "Traceback" not in log


def test_sigterm_lets_what_is_under_way_end(queue: Queue, run: Processes, receiver: Receiver, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def answer(message: Message, writer: asyncio.StreamWriter) -> None:
        while not gate.is_set():
            await asyncio.sleep(0.01)
        await says(OK)(message, writer)

    receiver.answer = answer
    words = ("push", queue.name, "--to", receiver.url, "--secret-file", str(secret_file(tmp_path)), "--allow-private")
    process = run.start(*words)
    queue.put("a")
    wait_until(lambda: receiver.messages, 60)
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: "drains" in run.log(process), 30)
    gate.set()
    assert process.wait(60) == 0, run.log(process)
    assert queue.inspect("a").state == "done"


@pytest.mark.parametrize(
    ("more", "text", "complaint"),
    [
        (("--to", "http://127.0.0.1/"), SECRET, "--to leads to 127.0.0.1, a loopback address"),
        (("--to", "ftp://hook.example/"), SECRET, "--to must be a URL like https://hook.example/path"),
        (("--to", "https://me:word@hook.example/"), SECRET, "--to names a user"),
        (("--to", "https://hook.example/"), "", "has 0 secrets, not 1 to 5"),
        (("--to", "https://hook.example/"), "secret-canary", "secret 1 cannot be used: it does not begin with whsec_"),
        (("--to", "https://hook.example/", "-c", "0"), SECRET, "--concurrency"),
    ],
)
def test_what_cannot_be_used_ends_the_command_with_2_and_says_so(
    say: Say, tmp_path: Path, more: tuple[str, ...], text: str, complaint: str
) -> None:
    done = say("push", "q", "--secret-file", str(secret_file(tmp_path, text)), *more)
    assert (done.code, complaint in " ".join(done.err.split())) == (2, True), done.err
    assert "canary" not in done.err


def test_each_secret_of_a_file_signs_and_a_file_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    other = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    file = secret_file(tmp_path, f"{SECRET}\n{other}\n")
    secrets, warning = read_secrets(file)
    assert (secrets[0], warning) == (KEY, "")
    headers = messages.headers(secrets, "m", int(time.time()), b"{}")
    for secret in (SECRET, other):
        assert Webhook(secret).verify("{}", headers) == {}
    file.chmod(0o644)
    assert read_secrets(file)[1] == f"other users may read --secret-file {file}: chmod 600 {file}"
    with pytest.raises(InvalidInput, match="cannot read --secret-file"):
        read_secrets(tmp_path / "none")
