"""The layout of the package: reading order is import order, and each module says what it is for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import timeoutq
from tests.rig import house

PACKAGE = Path(timeoutq.__file__).parent


def walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Give each module of a folder in reading order, those of its folders before the folder itself."""
    for name in house.listed(folder):
        if (folder / name / "__init__.py").exists():
            yield from walk(folder / name)
        else:
            yield dotted(folder / f"{name}.py"), folder / f"{name}.py"
    yield dotted(folder), folder / "__init__.py"


def dotted(path: Path) -> str:
    return ".".join(("timeoutq", *path.with_suffix("").relative_to(PACKAGE).parts))


ORDER = dict(walk(PACKAGE))
PLACE = {module: place for place, module in enumerate(ORDER)}
BUDGETS = {
    "cli": 4335,
    "client": 3915,
    "crawlee": 480,
    "django": 695,
    "functions": 5075,
    "gateway": 5985,
    "lua": 4940,
    "rooms": 2900,
    "scrapy": 2320,
    "server": 3355,
    "testing": 630,
    "urls": 1110,
    "verbs": 2895,
    "watch": 3620,
    "words": 2450,
    "worker": 6265,
}
"""How many lines of code, Lua, templates and text a folder may have, with everything in it but the pages of `help`."""


def imported(path: Path) -> set[str]:
    """Give the modules that a file imports anywhere in it. `timeoutq` itself is imported for its version."""
    found: set[str] = set()
    for module, names in house.module(path).imports:
        inside = {f"{module}.{name}" for name in names} & PLACE.keys()
        found |= inside or ({module} & PLACE.keys())
    return found - {"timeoutq"}


def test_every_module_has_its_place() -> None:
    assert set(PACKAGE.rglob("*.py")) == set(ORDER.values()), "name the module in the docstring of its folder"


def test_nothing_is_loose() -> None:
    assert {path.name for path in PACKAGE.glob("*.*")} == {"__init__.py", "__main__.py", "py.typed"}


def test_each_module_imports_only_what_stands_above_it() -> None:
    for module, path in ORDER.items():
        below = {name for name in imported(path) if PLACE[name] > PLACE[module]}
        assert not below, f"{module} imports {below}, which stand below it"


def test_no_room_imports_another() -> None:
    for module, path in ORDER.items():
        if module.startswith("timeoutq.rooms."):
            mine = ".".join(module.split(".")[:3])
            others = {name for name in imported(path) if not f"{name}.".startswith(f"{mine}.")}
            rooms = {name for name in others if name.startswith("timeoutq.rooms.")} - {"timeoutq.rooms.room"}
            assert not rooms, f"{module} imports {rooms}"


def test_help_says_of_each_module_what_the_module_itself_says() -> None:
    for folder in (path.parent for path in ORDER.values() if path.name == "__init__.py"):
        for name, said in house.listed(folder).items():
            path = folder / name
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            first = house.module(file).docstring.partition("\n")[0]
            assert said == first, f"{file} and the docstring of {folder / '__init__.py'}"


def test_a_folder_stays_within_its_budget_of_lines() -> None:
    text = {".py", ".lua", ".html", ".css", ".js", ".json", ".md", ".yaml"}
    for folder, most in BUDGETS.items():
        files = [path for path in (PACKAGE / folder).rglob("*.*") if path.suffix in text]
        lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
        assert most - 300 <= lines <= most, f"{folder} has {lines} lines: make it smaller, or change its budget"
    assert {*BUDGETS, "help"} == {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__"}


def test_only_the_server_folder_speaks_to_redis_py() -> None:
    for module, path in ORDER.items():
        if not module.startswith(("timeoutq.server.", "timeoutq.testing")):
            assert not re.search(r"^\s*(import|from) redis", path.read_text("utf-8"), re.MULTILINE), path


def test_of_those_who_watch_only_the_drawing_knows_rich() -> None:
    """A snapshot goes to programs, too: it must not need a terminal, nor what draws on one."""
    drawing = {f"timeoutq.watch.{part}" for part in ("draw", "live")}
    others = [module for module in ORDER if module.startswith("timeoutq.watch.") and module not in drawing]
    for module in others:
        path = ORDER[module]
        assert not re.search(r"^\s*(import|from) rich", path.read_text("utf-8"), re.MULTILINE), path
        assert not imported(path) & drawing, path
    loaded = "{'rich.console', 'rich.live', 'rich.text'} & set(sys.modules)"
    code = f"import sys, {', '.join(others)}; print(*sorted({loaded}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_telling_and_the_formats_of_the_command_write_to_the_log() -> None:
    """Whoever listens to logs may raise: `telling.say` is the one way to a log that ends nothing."""
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log", "handle"}
    for module, path in ORDER.items():
        if module not in ("timeoutq.words.telling", "timeoutq.cli.logs"):
            for line, name, attribute in house.module(path).calls:
                assert attribute not in levels or name not in ("log", "logger", "logging"), f"{path}:{line}"


def test_no_pickle_anywhere() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert "import pickle" not in path.read_text("utf-8")


def test_all_names_it_exports_can_be_imported() -> None:
    for name in timeoutq.__all__:
        found = getattr(timeoutq, name)
        assert not inspect.isclass(found) or found.__name__ in (name, "Any"), name
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    typed = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(timeoutq.__all__) == typed - {None}


def test_the_lua_files_that_a_page_or_a_comment_names_are_there() -> None:
    for page in (*PACKAGE.rglob("*.*"), *PACKAGE.parent.joinpath("tests").rglob("*.py")):
        if page.suffix in (".py", ".md", ".lua"):
            for name in re.findall(r"`(lua/[\w/]+\.lua)`", page.read_text("utf-8")):
                assert PACKAGE.joinpath(name).is_file(), f"{page} names {name}"


def test_help_needs_no_client() -> None:
    code = "import sys, timeoutq.cli; print(*sorted({'redis', 'asyncio', 'tenacity'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_function_is_longer_than_70_lines() -> None:
    for path in ORDER.values():
        for name, lines in house.module(path).functions:
            assert lines <= 70, f"{path}: {name} has {lines} lines"


def test_only_the_drivers_of_flows_call_the_links() -> None:
    links = [PACKAGE / "server" / name for name in ("link.py", "memory.py", "cluster.py")]
    for path in PACKAGE.rglob("*.py"):
        if path not in (*links, PACKAGE / "client" / "driving.py"):
            calls = r"timeoutq\.server\.link\b|import .*\blink\b|\b_link\(|\.wait_(bell|alarm)\("
            assert not re.search(calls, path.read_text("utf-8")), path


def test_a_class_of_the_worker_is_handed_seven_things_at_most() -> None:
    """`Worker` itself takes the settings that users give."""
    for path in (PACKAGE / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name != "Worker":
                handed = [
                    len([*part.args.args[1:], *part.args.kwonlyargs])
                    for part in node.body
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__"
                ]
                assert max(handed, default=0) <= 7, f"{path}: {node.name}"


def test_whatever_a_checker_is_told_to_ignore_has_its_reason() -> None:
    ignored = re.compile(r"# (?:noqa|type: ignore|pyright: ignore)\b")
    reasons = {
        f"{path.relative_to(house.ROOT)}:{number}": line.rpartition("# ")[2].strip()
        for folder in ("timeoutq", "demo", "tests")
        for path in (house.ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if ignored.search(line)
    }
    assert len(reasons) > 100
    bare = re.compile(r"(?:noqa|type: ignore|pyright: ignore|same|as above|likewise)\b")
    assert {place: why for place, why in reasons.items() if bare.match(why)} == {}
