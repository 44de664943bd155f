"""A function as it was decorated, and a call of it that a worker has read. No I/O."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from timeoutq.functions import ids
from timeoutq.functions.envelope import Options, Step
from timeoutq.functions.errors import BadFunction
from timeoutq.functions.options import Settings
from timeoutq.functions.signature import Signature, returned
from timeoutq.words.arguments import shown


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """All that is known of a function when it is decorated."""

    function: Callable[..., Any]
    is_async: bool
    signature: Signature
    returns: Any  # the type of its result, as msgspec takes it
    settings: Settings
    key: ids.Template | bool  # what makes ids of arguments; True: all arguments; False: nothing does
    group: ids.Template | None
    place: tuple[str, str, str]  # its module, its app, and its name
    takes_nothing: bool = field(init=False)
    """Whether a worker need not make a context: the function takes none, and runs in this process."""
    is_plain: bool = field(init=False)
    """Whether a worker need only await it: an `async def` without a context, and without a limit of any kind."""

    def __post_init__(self) -> None:
        """Work out once, and not for each call."""
        is_free = self.settings.max_runtime is None and self.settings.limit is None
        takes_nothing = self.signature.context is None and self.settings.executor != "process"
        object.__setattr__(self, "takes_nothing", takes_nothing)
        object.__setattr__(self, "is_plain", self.is_async and takes_nothing and is_free)

    @property
    def name(self) -> str:
        """The name that its calls carry."""
        return self.signature.name

    @property
    def key_begins(self) -> str | None:
        """What all ids begin with that the key makes; None without a key."""
        if isinstance(self.key, ids.Template):
            return self.key.begin
        return f"{self.name}:" if self.key else None

    def key_of(self, values: Mapping[str, object]) -> str | None:
        """Give the id that the key makes of arguments."""
        if isinstance(self.key, ids.Template):
            return ids.shortened(self.key.fill(values))
        return ids.whole_call(self.name, values) if self.key else None

    def group_of(self, values: Mapping[str, object]) -> str | None:
        """Give the group in which the function's limit counts a call."""
        if self.settings.limit is None:
            return None
        return ids.group(self.name if self.group is None else self.group.fill(values))

    def group_of_call(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
        """Give the group in which the function's limit counts a call whose arguments have been read."""
        if self.group is None:
            return self.group_of({})
        bound = self.signature.bind(args, kwargs)
        return self.group_of({name: bound.get(name, one.otherwise) for name, one in self.signature.slots.items()})

    def counts_with(self, other: Definition) -> bool:
        """Say whether the limits of both functions of one queue count their calls in the same groups."""
        mine, theirs = self.settings.limit, other.settings.limit
        if mine is None or theirs is None:
            return False
        return (mine.per or self.name) == (theirs.per or other.name)


@dataclass(slots=True)  # not frozen: a worker makes one for each call, and frozen ones take three times as long
class Opened:
    """A call that a worker has read: what to run, and how."""

    definition: Definition
    args: Sequence[object]
    kwargs: Mapping[str, object]
    settings: Settings  # those of the function, with what was chosen for this call
    options: Options
    then: Sequence[Step]
    tick: float | None = None  # the time for which a schedule has put the call, Unix seconds
    put_ms: int | None = None  # when the call was put, by the caller's clock, if the payload says so

    @property
    def expires(self) -> float | None:
        """Until when the call must have begun, Unix seconds; None: at any time."""
        lasts = self.options.lasts
        return self.options.expires if lasts is None or self.tick is None else self.tick + lasts

    @property
    def wants_result(self) -> bool:
        """Whether anybody reads what the function returns."""
        return bool(self.settings.keep_result or self.then)

    @property
    def keep_id(self) -> bool | timedelta:
        """Whether `done` keeps the id of the call, or for how long."""
        unique = self.settings.unique
        return unique if isinstance(unique, timedelta) else unique != "active"


def define(function: Callable[..., Any], name: str | None, settings: Settings, key: object, app: str) -> Definition:
    """Read a function. Raises `BadFunction`, which names what cannot be, and how to mend it."""
    named = _named(function, name)
    signature = Signature.of(function, named)
    needed = [one.name for one in signature.slots.values() if one.is_needed]
    if settings.timed is not None and needed:
        raise BadFunction(
            f"{named}() is called by its schedule without arguments, but needs {' and '.join(map(repr, needed))}: give "
            "a default, or make a schedule of a call, with app.schedules.set"
        )
    if key is None and settings.unique != "active":
        raise BadFunction(
            f"{named}(): unique= is about ids that a key makes: add key=, or, where it follows "
            "another call, write then(f.options(unique=…))"
        )
    per = None if settings.limit is None else settings.limit.per
    try:
        returns = returned(function, named)
    except BadFunction:
        if settings.keep_result:
            raise
        returns = Any  # nobody keeps it
    module = function.__module__
    if settings.executor == "process":
        module = _module(function, signature)
    return Definition(
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        signature=signature,
        returns=returns,
        settings=settings,
        key=key is True if key is None or key is True else ids.Template.of(key, signature),
        group=None if per is None else ids.Template.of(per, signature, "per"),
        place=(module, app, named),
    )


def _module(function: Callable[..., Any], signature: Signature) -> str:
    """Give the name under which a pool process imports the module of a function. Raises `BadFunction` if it cannot."""
    named, wrong = signature.name, ""
    main: Any = sys.modules["__main__"]
    module, file, spec = function.__module__, getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if module == "__main__" and spec is not None:  # python -m module
        module = spec.name
    elif module == "__main__" and file is not None and Path(file).suffix == ".py":  # python module.py
        module = Path(file).stem
    if inspect.iscoroutinefunction(function):
        wrong = "it is an async def, which a worker can cancel: leave executor= out, or write a def"
    elif sys.platform == "win32":
        wrong = "pool processes need a system with fork: leave executor= out"
    elif module == "__main__":
        wrong = "it stands in no module that another process could import: move it into a file"
    elif "<" in function.__qualname__:  # <lambda>, <locals>
        wrong = "another process finds only what stands at the top of a module: move it there, as a def"
    elif signature.state not in (None, type(None), Any):
        wrong = f"the state of the lifespan is not in that process: annotate {signature.context!r} as Context[None]"
    elif not _is_at_home(function.__module__):
        wrong = f"importing {module}, where it is written, does not make it a task, so decorate it there"
    if wrong:
        raise BadFunction(f'{named}() cannot have executor="process": {wrong}')
    return module


def _is_at_home(module: str) -> bool:
    """Say whether a module, or a package around it, runs now: then whoever imports the module runs the same."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and f"{module}.".startswith(f"{frame.f_globals.get('__name__')}."):
            return True
        frame = frame.f_back
    return False


def _named(function: Callable[..., Any], name: str | None) -> str:
    if not inspect.isfunction(function):
        kind = "a class" if inspect.isclass(function) else type(function).__name__
        raise BadFunction(f"{shown(function)} is no function ({kind}): decorate what def or async def makes")
    outer, _, own = function.__qualname__.rpartition(".")
    if outer and not outer.endswith("<locals>"):
        raise BadFunction(
            f"{function.__qualname__} is a method: a call has no object to run it on; move it out of {outer}"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadFunction(f"{own}() is a generator function: calling it runs nothing; return a list where it yields")
    if own == "<lambda>" and name is None:
        raise BadFunction("a lambda has no name under which a worker could find it: use def, or pass name=")
    return ids.function_name(own if name is None else name)
