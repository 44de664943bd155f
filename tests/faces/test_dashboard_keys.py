"""The keys of the dashboard, each driven in a terminal of its own: lower case looks, upper case acts and asks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console

from tests.faces.test_dashboard import stats
from tests.rig.terminal import Terminal
from tests.rig.waiting import wait_until
from timeoutq import Politeness, Queue, Task
from timeoutq.server.embedded import EmbeddedServer
from timeoutq.watch.directory import Listed
from timeoutq.watch.draw import bottom, pane
from timeoutq.watch.live import keys_of
from timeoutq.watch.screen import HELP, HOSTS, KEYS, QUEUES, TASK, TASKS, VERBS, VIEWS, Rows, Screen, Wish
from timeoutq.words.model import Entry, State

HOSTILE = "\x1b[2J\x1b]0;evil\x07\u202e[bold]x\n"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def queue(server: EmbeddedServer) -> Iterator[Queue]:
    with Queue("keys", server.url) as opened:
        yield opened
        opened.purge()


@pytest.fixture
def terminal(
    queue: Queue, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Terminal]]:
    monkeypatch.setattr(Terminal, "program", ("-m", "timeoutq", "dashboard"))
    opened: list[Terminal] = []

    def start(*words: str, shows: str = "known") -> Terminal:
        opened.append(Terminal("keys", server.url, "--interval", "0.2s", *words))
        opened[-1].until(lambda text: shows in text)
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def failed(queue: Queue, *tasks: str, error: str = "ValueError: bad page") -> None:
    queue.put(*tasks)
    while leases := queue.claim(100):
        queue.fail(leases, error, give_up=True)


# ---- with a server, in a terminal of 80 by 24


def test_a_failed_task_is_found_looked_at_and_retried(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    failed(queue, "https://a.example/1", "https://a.example/2", HOSTILE)
    queue.forget("https://a.example/2")
    queue.put(Task("https://a.example/2", {"city": "Zürich"}))
    failed(queue)
    shown = terminal()
    shown.type(b"t")
    # a picture is read while it is drawn: each look waits for all that it wants to see
    shown.until(lambda text: "keys  3 failed" in text and "a.example/2" in text and r"\x1b[2J\x1b]0;evil" in text)
    text = shown.until(lambda text: all(line.startswith(("╭", "│", "╰")) for line in text.splitlines()[:23]))
    assert len(text.splitlines()) == 24
    assert b"\x1b]0;evil" not in shown.raw
    shown.type(b"/a.example/2\r")
    shown.until(lambda text: "with a.example/2" in text and "a.example/1" not in text)
    shown.type(b"w")
    shown.until(lambda text: all(word in text for word in ("failed: ", "ValueError: bad page", '{"city": "Zürich"}')))
    shown.type(b"R")
    shown.until(lambda text: "Retry https://a.example/2?  y/n" in text)
    shown.type(b"n")
    shown.until(lambda text: "nothing was done" in text)
    assert queue.inspect("https://a.example/2").state is State.FAILED
    shown.type(b"Ry")
    shown.until(lambda text: "retried https://a.example/2" in text and "todos: " in text)
    assert queue.inspect("https://a.example/2").state is State.TODOS
    shown.type(b"\x1b")
    shown.until(lambda text: "none of 2 tasks" in text)
    shown.type(b"q")
    assert shown.is_restored()


def test_tasks_are_forgotten_released_and_cancelled(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    queue.put("gone", "stopped", "held")
    queue.claim(3)
    queue.requeue_expired()
    shown = terminal()
    shown.type(b"t\x1b[C")
    shown.until(lambda text: "keys  3 in_progress" in text and "held" in text)
    shown.type(b"/held\r")
    shown.until(lambda text: "with held" in text and "gone" not in text)
    shown.type(b"L")
    shown.until(lambda text: "Take held from its worker and make it ready again?" in text)
    shown.type(b"y")
    shown.until(lambda text: "it is ready again" in text)
    assert queue.inspect("held").state is State.TODOS
    shown.type(b"/" + b"\x7f" * 4 + b"stopped\r")
    shown.until(lambda text: "with stopped" in text and "1 of 2 looked at" in text)
    shown.type(b"Cy")
    shown.until(lambda text: "cancel stopped: its worker is told to stop" in text)
    assert queue.inspect("stopped").cancelled_by is not None
    shown.type(b"/" + b"\x7f" * 7 + b"gone\r")
    shown.until(lambda text: "with gone" in text and "1 of 2 looked at" in text)
    shown.type(b"Fy")
    shown.until(lambda text: "forgot gone" in text)
    assert queue.inspect("gone").state is None


def test_hosts_are_blocked_and_unblocked(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    shown = terminal(shows="unknown")
    queue.configure(politeness=Politeness(per_host=1))
    queue.put("https://a.example/1", "https://a.example/2", "https://b.example/1")
    shown.until(lambda text: "known" in text)
    shown.type(b"h")
    shown.until(lambda text: "a.example" in text and "b.example" in text and "hosts" in text)
    shown.type(b"\x1b[H")
    first = queue.hosts.list().hosts[0].host
    shown.type(b"B")
    shown.until(lambda text: f"Block host {first} for" in text and "such as 10m or 2h; enter blocks" in text)
    shown.type(b"1h\r")
    shown.until(lambda text: f"blocked {first}" in text)
    assert queue.hosts.inspect(first).blocked_until is not None
    shown.until(lambda text: "⊘" in text)
    shown.type(b"Uy")
    shown.until(lambda text: f"unblocked {first}" in text)
    wait_until(lambda: queue.hosts.inspect(first).blocked_until is None)


def test_another_queue_is_chosen_from_those_of_the_server(
    queue: Queue, server: EmbeddedServer, terminal: Callable[..., Terminal]
) -> None:
    with Queue("zoo", server.url) as other:
        queue.put("a")
        other.put("lion", "tiger")
        shown = terminal()
        shown.type(b"c")
        shown.until(lambda text: "zoo" in text and "keys" in text)
        shown.type(b"\x1b[F\r")
        shown.until(lambda text: "timeoutq zoo" in text and "2 todos" in text)
        shown.type(b"q")
        assert (shown.is_restored(), shown.process.wait(10)) == (True, 0)
        other.purge()


def test_a_dashboard_that_only_looks_changes_nothing(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    failed(queue, "a")
    shown = terminal("--read-only")
    shown.type(b"t")
    shown.until(lambda text: "keys  1 failed" in text and "bad page" in text)
    shown.type(b"F")
    shown.until(lambda text: "this dashboard only looks" in text)
    shown.type(b"y?")
    shown.until(lambda text: "block or unblock a host" in text)
    assert queue.inspect("a").state is State.FAILED


def test_rows_and_pages_are_gone_through_and_a_queue_paused(queue: Queue, terminal: Callable[..., Terminal]) -> None:
    def row(key: bytes, *, other_than: str = "", again: str = "") -> str:
        """Press a key; give the row that is selected then."""

        def is_there(_: str) -> bool:
            lines = [line for line in map(shown.screen.buffer.__getitem__, range(24)) if line[2].reverse]
            rows = ["".join(line[x].data for x in range(2, 6)) for line in lines if line[76].reverse]
            selected[:] = [one for one in rows if one != other_than and one == (again or one)]
            return bool(selected)

        selected: list[str] = []
        shown.type(key)
        shown.until(is_there)
        return selected[0]

    queue.schedule((f"t{n:03}" for n in range(250)), after=600)
    shown = terminal()
    shown.type(b"t\x1b[D\x1b[D")
    shown.until(lambda text: "keys  250 scheduled" in text and "of 200" in text)
    first = row(b"")
    second = row(b"j", other_than=first)
    row(b"k", again=first)
    row(b"\x1b[B", again=second)
    row(b"\x1b[A", again=first)
    assert row(b"\x1b[6~", other_than=first) != second
    row(b"\x1b[5~", again=first)
    last = row(b"\x1b[F", other_than=first)
    row(b"\x1b[H", again=first)
    assert row(b"n", other_than=first) > last
    row(b"g", again=first)
    shown.type(b"\r")
    shown.until(lambda text: f"{first}" in text and "due" in text and "scheduled: " in text)
    shown.type(b"Py")
    shown.until(lambda text: "PAUSED" in text and "paused: no task is handed out" in text)
    assert queue.stats().paused
    shown.type(b"oP")
    shown.until(lambda text: "250 known" in text and "Resume queue keys?" in text)
    shown.type(b"y")
    wait_until(lambda: not queue.stats().paused)
    shown.type(b"\x04")
    assert shown.is_restored()


# ---- without a server


def screen(*tasks: str, state: State = State.FAILED) -> Screen:
    made = Screen("q", view=TASKS, state=state)
    made.height = 5
    made.show(found(*tasks, state=state))
    return made


def found(*tasks: str, state: State = State.FAILED) -> Rows:
    """The answer to the wish for the tasks in a state."""
    return Rows(Wish("fetch", TASKS, state), [Entry(task) for task in tasks])


def test_a_row_stays_selected_when_others_come_and_its_neighbour_is_when_it_goes() -> None:
    shown = screen("a", "b", "c")
    shown.press("down")
    assert shown.selected == "b"
    shown.show(found("new", "a", "b", "c"))
    assert shown.selected == "b"
    shown.show(found("new", "a", "c"))
    assert shown.selected == "c"
    shown.show(found())
    assert shown.selected == ""
    assert shown.press("R") is None
    assert shown.question is None


def test_the_selected_row_is_always_in_sight() -> None:
    shown = screen(*map(str, range(50)))
    for key in ("down", "page down", "end", "up", "page up", "home", "j", "k"):
        shown.press(key)
        assert shown.top <= shown.at < shown.top + shown.height, key


def test_rows_that_are_not_wanted_any_more_are_not_shown() -> None:
    shown = screen("a")
    shown.press("right")
    shown.show(found("late"))
    assert shown.found.rows == ()


def test_a_question_is_answered_by_y_only() -> None:
    for key in ("enter", "n", "esc", "R", "q", " ", "up"):
        shown = screen("a")
        shown.press("R")
        assert shown.question is not None
        assert shown.press(key) is None
        assert shown.question is None
    shown.press("R")
    assert shown.press("y") == Wish("retry", "a")


@pytest.mark.parametrize(("typed", "seconds"), [("5m", 300), ("90", 90), ("1.5h", 5400)])
def test_a_host_is_blocked_for_a_length_of_time(typed: str, seconds: float) -> None:
    shown = asked()
    assert [shown.press(key) for key in (*typed, "enter")][-1] == Wish("block", "a.example", seconds=seconds)
    assert (shown.question, shown.typing) == (None, None)


def test_a_length_of_time_is_mended_while_it_is_typed_and_nothing_else_blocks_a_host() -> None:
    shown = asked()
    for key in ("1", "5", "m", "m", "enter"):
        assert shown.press(key) is None
    assert shown.typing == ""  # what is no length of time is asked for again
    for key in ("1", "5", "m", "backspace", "h"):
        assert shown.press(key) is None
    assert "15h" in bottom(shown, 80).plain
    assert shown.press("enter") == Wish("block", "a.example", seconds=54000)
    for keys in (("esc",), ("5", "esc"), ("0", "enter", "esc"), ("y", "enter", "q", "enter", "esc")):
        shown = asked()
        assert [shown.press(key) for key in keys] == [None] * len(keys)
        assert (shown.question, shown.said[0]) == (None, "nothing was done"), keys


def asked() -> Screen:
    """A screen that asks for how long a host is blocked."""
    shown = Screen("q")
    shown.press("h")
    shown.show(Rows(Wish("fetch", HOSTS), [Entry("a.example")]))
    shown.press("B")
    return shown


def test_the_list_of_queues_counts_ready_and_waiting_tasks_apart() -> None:
    shown = Screen("q")
    shown.press("c")
    counts = stats(todos=2, waiting=13, in_progress=1, failed=4)
    shown.show(Rows(Wish("fetch", QUEUES), [Listed("crawl", counts), Listed("away", None, "?")]))
    drawn = io.StringIO()
    Console(width=80, file=drawn).print(pane(shown, 0.0, None, 80, 10))
    lines = [line.strip("│ \n").split() for line in drawn.getvalue().splitlines()]
    assert ["queue", "ready", "waiting", "in", "progress", "failed"] in lines
    assert ["crawl", "2", "13", "1", "4"] in lines


def test_acts_stand_only_where_they_make_sense() -> None:
    shown = screen("a", state=State.TODOS)
    for key in "RL":
        assert shown.press(key) is None
        assert shown.question is None
        assert "only for tasks in" in shown.said[0]
    assert Screen("q").press("F") is None


def test_a_queue_that_was_just_paused_is_offered_to_be_resumed() -> None:
    shown = screen("a")
    for asked in ("Pause queue q?", "Resume queue q?", "Pause queue q?"):
        shown.press("P")
        assert shown.question is not None
        assert shown.question[0] == asked
        wish = shown.press("y")
        assert wish is not None
        shown.acted(wish, "done")


def test_no_key_of_a_screen_that_only_looks_asks_anything_and_the_help_names_them_all() -> None:
    shown = screen("a")
    shown.read_only = True
    for key in (*VERBS, "P"):
        assert shown.press(key) is None
        assert shown.question is None, key
    told = " ".join(keys for keys, _ in KEYS)
    assert all(key in told for key in (*VERBS, "P", *VIEWS, "/", "n", "g", "w", "enter"))


def test_letters_are_text_while_a_filter_is_typed() -> None:
    shown = screen("a")
    shown.press("/")
    for key in "qRéP":
        assert shown.press(key) is None
    assert shown.typing == "qRéP"
    shown.press("backspace")
    wish = shown.press("enter")
    assert wish is not None
    assert (wish.filter, shown.filter) == ("qRé", "qRé")
    shown.press("/")
    shown.press("esc")
    assert shown.filter == "qRé"
    shown.press("esc")
    assert (shown.filter, shown.view) == ("", TASKS)


def test_the_help_and_a_task_lead_back_to_where_they_were_opened() -> None:
    shown = screen("a")
    shown.press("enter")
    assert shown.view == TASK
    shown.press("?")
    assert shown.view == HELP
    shown.press("esc")
    shown.press("esc")
    assert (shown.view, shown.selected) == (TASKS, "a")


TYPED = [
    ("aA", ["a", "A"], ""),
    ("\x1b[A\x1bOB\x1b[5~", ["up", "down", "page up"], ""),
    ("x\x1b[", ["x"], "\x1b["),
    ("\x1bq", ["esc", "q"], ""),
    ("\x1b[200~x\x1b[?1;2c", ["x"], ""),
    ("é日\x00", ["é", "日"], ""),
    ("\r\x7f\x04", ["enter", "backspace", "q"], ""),
]


def test_keys_are_told_apart_however_a_terminal_sends_them() -> None:
    for typed, keys, begun in TYPED:
        assert keys_of(typed) == (keys, begun)
