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
VIEWS = {"o": OVERVIEW, "t": TASKS, "h": HOSTS, "c": QUEUES, "?": HELP}


@dataclass(frozen=True, slots=True)
class Wish:
    what: str
    """fetch: the rows of a list; explain: all about a task; queue: another queue; leave: nothing more; else a verb."""
    target: str = ""  # the task, the host or the queue; of `fetch`, the view whose rows are wanted
    state: State = State.FAILED
    filter: str = ""
    cursor: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Rows:
    """The answer to a wish for the rows of a list."""

    wish: Wish
    rows: Sequence[Entry | HostInfo | Listed] = ()
    cursor: str | None = None  # where the list goes on; None at its end
    looked: int = 0  # how many entries were looked at to find these


def name_of(row: Entry | HostInfo | Listed) -> str:
    """Give the task, the host or the queue of a row."""
    return row.task if isinstance(row, Entry) else row.host if isinstance(row, HostInfo) else row.name


@dataclass(frozen=True, slots=True)
class Verb:
    """What an upper-case key does."""

    name: str
    words: str  # the question, with `{}` where the target stands
    state: State | None = None  # in which list of tasks it makes sense; None for all
    of_host: bool = False


VERBS: Mapping[str, Verb] = {
    "R": Verb("retry", "Retry {}?", State.FAILED),
    "F": Verb("forget", "Forget {}, with all that is known of it?"),
    "L": Verb("release", "Take {} from its worker and make it ready again?", State.IN_PROGRESS),
    "C": Verb("cancel", "Cancel {}?"),
    "B": Verb("block", "Block host {} for", of_host=True),
    "U": Verb("unblock", "Unblock host {}?", of_host=True),
}
"""The keys that act on a task or a host. P, which pauses and resumes the queue, works everywhere."""


@dataclass(slots=True)
class Screen:
    queue: str
    read_only: bool = False
    view: str = OVERVIEW
    state: State = State.FAILED
    found: Rows = field(default_factory=lambda: Rows(Wish("fetch", TASKS)))
    selected: str = ""  # the name of the selected row: it stays selected when rows come and go
    filter: str = ""
    typing: str | None = None  # the filter while it is typed; or the answer to a question, if this is typed
    question: tuple[str, Wish] | None = None
    """Words, and what is done if they are answered with yes; or for `block`, with a length of time, such as 5m."""
    task: str = ""  # the task that is shown in full
    lines: Sequence[tuple[str, str]] = ()  # what is told of this task: words and their colour
    host_of: str = ""  # the host of this task
    top: int = 0  # the first line or row that is shown
    height: int = 10  # how many lines there is room for
    said: tuple[str, str] = ("", "")  # what the last act has given, and its colour
    paused: bool = False
    trail: list[str] = field(default_factory=list[str])
    """The views from which a task or the help was opened: where the key that closes them leads."""

    def press(self, key: str) -> Wish | None:
        """Take a key; give what it wants from the queue."""
        if self.typing is not None:
            return self._type(key)
        if self.question is not None:
            return self._answer(self.question[1] if key in ("y", "Y") else None)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.height, "page down": self.height,
                 "home": -(10**9), "end": 10**9}  # fmt: skip
        if key in steps:
            self._move(steps[key])
            return None
        if key in ("left", "right"):
            return self._turn(1 if key == "right" else -1)
        self.said = ("", "")
        match key:
            case "q" | "Q":
                return Wish("leave")
            case "esc":
                self._go_back()
            case "/":
                opened = self._open(TASKS) if self.view != TASKS else None
                self.typing = self.filter
                return opened
            case "g" if self.view in (TASKS, HOSTS):
                return self._open(self.view)
            case "n" if self.view in (TASKS, HOSTS):
                if self.found.cursor is not None:
                    return self._fetch(self.found.cursor)
                self.said = ("this is the last page", "")
            case "enter" | "w" if self.view == TASKS and self.selected:
                self.task, self.lines, self.host_of = self.selected, (), ""
                self._open(TASK)
                return self.wish
            case "enter" if self.view == QUEUES and self.selected:
                return Wish("queue", self.selected)
            case "P":
                verb = "resume" if self.paused else "pause"
                self._ask(f"{verb.capitalize()} queue {safe(self.queue, 40)}?", Wish(verb, self.queue))
            case _ if key in VIEWS:
                return self._open(VIEWS[key])
            case _ if key in VERBS:
                self._act(key, VERBS[key])
            case _:
                pass
        return None

    def show(self, found: Rows) -> None:
        """Take the rows that were fetched, if they are still wanted."""
        if found.wish == self._fetch(found.wish.cursor):
            before, names = self.at, [name_of(row) for row in found.rows]
            self.found = found
            if self.selected not in names:
                # the row has gone: the one that now stands in its place is selected
                self.selected = names[min(before, len(names) - 1)] if names else ""
            self._keep_in_sight()

    def explain(self, task: str, lines: Sequence[tuple[str, str]], host: str) -> None:
        if self.view == TASK and task == self.task:
            self.lines, self.host_of = lines, host
            self.top = min(self.top, max(0, len(lines) - self.height))

    def say(self, words: str, *, failed: bool = False) -> None:
        self.said = (words, "bold red" if failed else "green")

    def acted(self, wish: Wish, words: str) -> None:
        self.say(words)
        if wish.what in ("pause", "resume"):
            self.paused = wish.what == "pause"

    @property
    def at(self) -> int:
        return next((i for i, row in enumerate(self.found.rows) if name_of(row) == self.selected), 0)

    @property
    def wish(self) -> Wish | None:
        """What this view needs from the queue to be fresh; None if it needs nothing, or shows a later page."""
        if self.view == TASK:
            return Wish("explain", self.task)
        return self._fetch() if self.view in (TASKS, HOSTS) and self.found.wish.cursor is None else None

    def _fetch(self, cursor: str | None = None) -> Wish:
        return Wish("fetch", self.view, self.state, self.filter if self.view == TASKS else "", cursor)

    def _open(self, view: str) -> Wish | None:
        if view not in (TASK, HELP):
            self.trail.clear()
        elif view != self.view:
            self.trail.append(self.view)
        self.view, self.top = view, 0
        if view not in (TASKS, HOSTS, QUEUES):
            return None
        self.found, self.selected = Rows(self._fetch()), ""
        return self.found.wish

    def _go_back(self) -> None:
        if self.view in (TASK, HELP):
            self.view, self.top = self.trail.pop() if self.trail else OVERVIEW, 0
            self._keep_in_sight()
        elif self.view == TASKS and self.filter:
            self.filter = ""
        else:
            self._open(OVERVIEW)

    def _turn(self, step: int) -> Wish | None:
        if self.view != TASKS:
            return None
        self.state = STATES[(STATES.index(self.state) + step) % len(STATES)]
        return self._open(TASKS)

    def _move(self, step: int) -> None:
        if self.view in (TASK, HELP):
            most = max(0, len(self.lines) - self.height) if self.view == TASK else 100
            self.top = min(max(0, self.top + step), most)
        elif self.found.rows and self.view != OVERVIEW:
            self.selected = name_of(self.found.rows[min(max(0, self.at + step), len(self.found.rows) - 1)])
            self._keep_in_sight()

    def _keep_in_sight(self) -> None:
        if self.view in (TASKS, HOSTS, QUEUES):
            self.top = min(max(self.top, self.at - self.height + 1), self.at)

    def _act(self, key: str, verb: Verb) -> None:
        target = self.selected
        if self.view == TASK:
            target = self.host_of if verb.of_host else self.task
        if self.view not in (TASKS, TASK) and not (verb.of_host and self.view == HOSTS):
            self.said = (f"{key} needs a selected row: {'h shows hosts' if verb.of_host else 't shows tasks'}", "")
        elif verb.state and self.view == TASKS and self.state is not verb.state:
            self.said = (f"{verb.name}: only for tasks in {verb.state}", "")
        elif verb.of_host and self.view == TASKS:
            self.said = (f"{key} blocks the host of a task that is open (enter), or one of the hosts (h)", "")
        elif not target:
            self.said = ("nothing is selected", "")
        else:
            self._ask(verb.words.format(safe(target, 60)), Wish(verb.name, target))

    def _ask(self, words: str, wish: Wish) -> None:
        if self.read_only:
            self.say("this dashboard only looks: start it without --read-only", failed=True)
        else:
            self.question, self.typing = (words, wish), "" if wish.what == "block" else None

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
                return self._answer(replace(self.question[1], seconds=seconds))
            self.typing = ""
        elif key == "enter":
            self.filter, self.typing = typed, None
            return self._open(TASKS)
        elif key == "backspace":
            self.typing = typed[:-1]
        elif len(key) == 1 and len(typed) < LONGEST:
            self.typing = typed + key
        return None


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
