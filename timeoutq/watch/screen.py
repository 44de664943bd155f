"""What the live dashboard shows and what its keys do: decisions, without any I/O.

`Screen.press` takes a key and changes what is shown, or gives a wish that `hands.py` carries out. Lower-case keys look;
upper-case keys act, and ask first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from timeoutq.watch.directory import Listed
from timeoutq.words.model import Entry, HostInfo, State
from timeoutq.words.text import length_of, safe

STATES = (State.FAILED, State.IN_PROGRESS, State.TODOS, State.WAITING, State.SCHEDULED, State.DONE)
"""The lists of tasks, in the order in which left and right go through them."""

LONGEST = 200  # the most characters of what is typed

OVERVIEW, TASKS, TASK, HOSTS, QUEUES, HELP = "overview", "tasks", "task", "hosts", "queues", "help"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the screen wants from the queue."""

    what: str
    """fetch: the rows of a list; explain: all about a task; queue: another queue; leave: nothing more; else a verb."""
    target: str = ""  # the task, the host or the queue; of `fetch`, the view whose rows are wanted
    state: State = State.FAILED
    filter: str = ""
    cursor: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a list: of a task, of a host, or of a queue."""

    key: str
    entry: Entry | HostInfo | Listed


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to `fetch`."""

    view: str
    state: State | None = None
    filter: str = ""
    rows: Sequence[Row] = ()
    cursor: str | None = None  # where the list goes on; None at its end
    looked: int = 0  # how many entries were looked at to find these
    begun: str | None = None  # the cursor that this page began with


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and what is done if it is answered with yes; or for `block`, with a length of time, such as 5m."""

    words: str
    wish: Wish


@dataclass(frozen=True, slots=True)
class Verb:
    """What an upper-case key does."""

    name: str
    views: Sequence[str]
    words: str  # the question, with `{}` where the target stands
    states: Sequence[State] = ()  # in which lists of tasks it makes sense; empty for all


VERBS: Mapping[str, Verb] = {
    "R": Verb("retry", (TASKS, TASK), "Retry {}?", (State.FAILED,)),
    "F": Verb("forget", (TASKS, TASK), "Forget {}, with all that is known of it?"),
    "L": Verb("release", (TASKS, TASK), "Take {} from its worker and make it ready again?", (State.IN_PROGRESS,)),
    "C": Verb("cancel", (TASKS, TASK), "Cancel {}?"),
    "B": Verb("block", (HOSTS, TASKS, TASK), "Block host {} for"),
    "U": Verb("unblock", (HOSTS, TASKS, TASK), "Unblock host {}?"),
}
"""The keys that act on a task or a host. P, which pauses and resumes the queue, works everywhere."""


@dataclass(slots=True)
class Screen:
    """What is shown."""

    queue: str
    read_only: bool = False
    view: str = OVERVIEW
    state: State = State.FAILED
    rows: Rows = field(default_factory=lambda: Rows(TASKS))
    selected: str = ""  # the key of the selected row: it stays selected when rows come and go
    filter: str = ""
    typing: str | None = None  # the filter while it is typed; or the answer to a question, if this is typed
    question: Question | None = None
    task: str = ""  # the task that is shown in full
    lines: Sequence[tuple[str, str]] = ()  # what is told of this task: words and their colour
    top: int = 0  # the first line or row that is shown
    height: int = 10  # how many lines there is room for
    said: tuple[str, str] = ("", "")  # what the last act has given, and its colour
    paused: bool = False
    host_of: str = ""  # the host of the task that is shown in full
    trail: list[str] = field(default_factory=list[str])
    """The views from which a task or the help was opened: where the key that closes them leads."""

    def press(self, key: str) -> Wish | None:
        """Take a key; give what it wants from the queue."""
        if self.typing is not None:
            return self._type(key)
        if self.question is not None:
            return self._answer(self.question.wish if key in ("y", "Y") else None)
        if key in "qQ":
            return Wish("leave")
        if key in MOVES:
            return self._move(key)
        self.said = ("", "")
        if key == "esc":
            self._go_back()
            return None
        if key in LOOKS:
            return self._look(key)
        if key == "P":
            verb = "resume" if self.paused else "pause"
            self._ask(Question(f"{verb.capitalize()} queue {safe(self.queue, 40)}?", Wish(verb, self.queue)))
            return None
        self._act(key)
        return None

    def show(self, found: Rows) -> None:
        """Take the rows that were fetched, if they are still wanted."""
        if found.view == self.view and (
            found.view != TASKS or (found.state, found.filter) == (self.state, self.filter)
        ):
            before = self.at
            self.rows = found
            if not any(row.key == self.selected for row in found.rows):
                # the row has gone: the one that now stands in its place is selected
                self.selected = found.rows[min(before, len(found.rows) - 1)].key if found.rows else ""
            self._keep_in_sight()

    def explain(self, task: str, lines: Sequence[tuple[str, str]], host: str) -> None:
        """Take what was told of a task."""
        if self.view == TASK and task == self.task:
            self.lines, self.host_of = lines, host
            self.top = min(self.top, max(0, len(lines) - self.height))

    def say(self, words: str, *, failed: bool = False) -> None:
        """Take what an act has given."""
        self.said = (words, "bold red" if failed else "green")

    @property
    def look(self) -> tuple[object, ...]:
        """What changes the picture without an answer of the server."""
        return (self.view, self.state, self.selected, self.top, self.typing, self.question, self.said)

    @property
    def at(self) -> int:
        """The place of the selected row."""
        return next((i for i, row in enumerate(self.rows.rows) if row.key == self.selected), 0)

    @property
    def wish(self) -> Wish | None:
        """What this view needs from the queue to be fresh; None if it needs nothing, or shows a later page."""
        if self.view == TASK:
            return Wish("explain", self.task)
        if self.view in (TASKS, HOSTS) and self.rows.begun is None:
            return self._fetch()
        return None

    def _fetch(self, cursor: str | None = None) -> Wish:
        return Wish("fetch", self.view, self.state, self.filter if self.view == TASKS else "", cursor)

    def _open(self, view: str) -> Wish | None:
        if view not in (TASK, HELP):
            self.trail.clear()
        elif view != self.view:
            self.trail.append(self.view)
        self.view, self.top = view, 0
        if view in (TASKS, HOSTS, QUEUES):
            self.rows, self.selected = Rows(view, self.state), ""
            return self._fetch()
        return None

    def _go_back(self) -> None:
        if self.view in (TASK, HELP):
            self.view, self.top = self.trail.pop() if self.trail else OVERVIEW, 0
            self._keep_in_sight()
        elif self.view == TASKS and self.filter:
            self.filter = ""
        else:
            self._open(OVERVIEW)

    def _look(self, key: str) -> Wish | None:
        views = {"o": OVERVIEW, "t": TASKS, "h": HOSTS, "c": QUEUES, "?": HELP}
        is_list = self.view in (TASKS, HOSTS)
        if key in views:
            return self._open(views[key])
        if key == "/":
            opened = self._open(TASKS) if self.view != TASKS else None
            self.typing = self.filter
            return opened
        if key == "g" and is_list:
            return self._open(self.view)
        if key == "n" and is_list:
            if self.rows.cursor is not None:
                return self._fetch(self.rows.cursor)
            self.said = ("this is the last page", "")
        elif key in ("enter", "w") and self.view == TASKS and self.selected:
            self.task, self.lines, self.host_of = self.selected, (), ""
            self._open(TASK)
            return Wish("explain", self.task)
        elif key == "enter" and self.view == QUEUES and self.selected:
            return Wish("queue", self.selected)
        return None

    def _move(self, key: str) -> Wish | None:
        if key in ("left", "right"):
            if self.view != TASKS:
                return None
            step = 1 if key == "right" else -1
            self.state = STATES[(STATES.index(self.state) + step) % len(STATES)]
            return self._open(TASKS)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.height, "page down": self.height,
                 "home": -(10**9), "end": 10**9}  # fmt: skip
        if self.view in (TASK, HELP):
            most = max(0, len(self.lines) - self.height) if self.view == TASK else 100
            self.top = min(max(0, self.top + steps[key]), most)
        elif self.rows.rows and self.view in (TASKS, HOSTS, QUEUES):
            at = min(max(0, self.at + steps[key]), len(self.rows.rows) - 1)
            self.selected = self.rows.rows[at].key
            self._keep_in_sight()
        return None

    def _keep_in_sight(self) -> None:
        if self.view in (TASKS, HOSTS, QUEUES):
            self.top = min(max(self.top, self.at - self.height + 1), self.at)

    def _act(self, key: str) -> None:
        verb = VERBS.get(key)
        if verb is None:
            return
        of_host = verb.name in ("block", "unblock")
        target = self.selected
        if self.view == TASK:
            target = self.host_of if of_host else self.task
        if self.view not in verb.views:
            self.said = (f"{key} needs a selected row: {'h shows hosts' if of_host else 't shows tasks'}", "")
        elif verb.states and self.view == TASKS and self.state not in verb.states:
            self.said = (f"{verb.name}: only for tasks in {verb.states[0].value}", "")
        elif of_host and self.view == TASKS:
            self.said = (f"{key} blocks the host of a task that is open (enter), or one of the hosts (h)", "")
        elif not target:
            self.said = ("nothing is selected", "")
        else:
            words = verb.words.format(safe(target, 60))
            self._ask(Question(words, Wish(verb.name, target)))

    def _ask(self, question: Question) -> None:
        if self.read_only:
            self.say("this dashboard only looks: start it without --read-only", failed=True)
        else:
            self.question, self.typing = question, "" if question.wish.what == "block" else None

    def _answer(self, wish: Wish | None) -> Wish | None:
        self.question = self.typing = None
        if wish is None:
            self.said = ("nothing was done", "")
        return wish

    def _type(self, key: str) -> Wish | None:
        typed = self.typing or ""
        if key == "esc" and self.question is not None:
            return self._answer(None)
        if key == "esc":
            self.typing = None
        elif key == "enter" and self.question is not None:
            if seconds := length_of(typed):
                return self._answer(replace(self.question.wish, seconds=seconds))
            self.typing = ""
        elif key == "enter":
            self.filter, self.typing = typed, None
            return self._open(TASKS)
        elif key == "backspace":
            self.typing = typed[:-1]
        elif len(key) == 1 and len(typed) < LONGEST:
            self.typing = typed + key
        return None


MOVES = ("up", "down", "left", "right", "page up", "page down", "home", "end", "j", "k")
LOOKS = ("o", "t", "h", "c", "?", "/", "n", "g", "w", "enter", "tab")

KEYS: Sequence[tuple[str, str]] = (
    ("o", "the overview"), ("t", "the tasks; left and right go through the states"),
    ("h", "the hosts of a polite queue"), ("c", "change to another queue"), ("up down j k", "select a row"),
    ("enter or w", "all about a task: why it is not running, its error, its traceback"),
    ("/", "show only tasks with this text in their id, error or holder"),
    ("n  g", "the next page; back to the first page"), ("esc", "back"), ("?", "this help"), ("q", "leave"),
    ("R", "retry a failed task"), ("F", "forget a task"), ("L", "release: take a task from its worker"),
    ("C", "cancel a task"), ("P", "pause or resume the queue"), ("B  U", "block or unblock a host"),
)  # fmt: skip
"""What each key does, in the words of the help."""
