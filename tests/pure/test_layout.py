"""The layout of the package: reading order is import order, and each module says what it is for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import timeoutq
from tests.rig import house

PACKAGE = Path(timeoutq.__file__).parent
ORDER = list(house.listed(PACKAGE))
ROOMS = {
    room: [*house.listed(PACKAGE / room), "__init__"] for room in ORDER if (PACKAGE / room / "__init__.py").exists()
}
"""Modules that are folders, and the order in them."""


def files(module: str) -> list[Path]:
    if module in ROOMS:
        return [PACKAGE / module / f"{part}.py" for part in ROOMS[module]]
    return [PACKAGE / f"{module}.py"]


def imported(path: Path, package: str = "timeoutq") -> set[str]:
    depth = package.count(".") + 1
    found: set[str] = set()
    for name, names in house.module(path).imports:
        if f"{name}.".startswith(f"{package}."):
            parts = name.split(".")
            found |= {parts[depth]} if len(parts) > depth else set(names)
    return found


def test_every_module_has_its_place() -> None:
    modules, rooms = {path.stem for path in PACKAGE.glob("*.py")}, {path.parent.name for path in PACKAGE.glob("*/*.py")}
    assert {*modules, *rooms} == {*ORDER, "__init__"}, "name the module in the docstring of timeoutq/__init__.py"
    for room, order in ROOMS.items():
        found = {path.stem for path in (PACKAGE / room).glob("*.py")}
        assert found == set(order), f"name the module in the docstring of timeoutq/{room}/__init__.py"


def test_each_module_imports_only_what_stands_above_it() -> None:
    for place, module in enumerate(ORDER):
        for path in files(module):
            below = imported(path) - set(ORDER[:place]) - ({module} & ROOMS.keys())
            assert not below, f"{module} imports {below}, which stand below it"


def test_in_a_room_the_same_order_holds() -> None:
    for room, order in ROOMS.items():
        for place, path in enumerate(files(room)):
            below = imported(path, f"timeoutq.{room}") - set(order[:place])
            assert not below, f"{room}.{path.stem} imports {below}, which stand below it"


def test_help_says_of_each_module_what_the_module_itself_says() -> None:
    for package in [PACKAGE, *(PACKAGE / room for room in ROOMS)]:
        for name, said in house.listed(package).items():
            path = package / name
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            first = house.module(file).docstring.partition("\n")[0]
            assert said == first, f"{file} and the docstring of {package / '__init__.py'}"


def test_only_the_links_speak_to_redis_py() -> None:
    speakers = ("troubles", "patience", "names", "connection", "wire", "link", "memory", "cluster", "testing")
    for module in ORDER:
        if module not in speakers:
            for path in files(module):
                text = path.read_text("utf-8")
                assert not re.search(r"^\s*(import|from) redis", text, re.MULTILINE), path


def test_of_those_who_watch_only_the_drawing_knows_rich() -> None:
    """A snapshot goes to programs, too: it must not need a terminal, nor what draws on one."""
    drawing = {"draw", "panes", "live"}
    for part in set(ROOMS["watch"]) - drawing:
        path = PACKAGE / "watch" / f"{part}.py"
        assert not re.search(r"^\s*(import|from) rich", path.read_text("utf-8"), re.MULTILINE), path
        assert not imported(path, "timeoutq.watch") & drawing, path
    parts = ", ".join(f"timeoutq.watch.{part}" for part in ROOMS["watch"] if part not in {*drawing, "__init__"})
    code = f"import sys, {parts}; print(*sorted({{'rich.console', 'rich.live', 'rich.text'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_telling_and_the_formats_of_the_command_write_to_the_log() -> None:
    """Whoever listens to logs may raise: `telling.say` is the one way to a log that ends nothing."""
    levels = {"debug", "info", "warning", "error", "exception", "critical", "log", "handle"}
    for module in ORDER:
        if module not in ("telling", "logs"):
            for path in files(module):
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
    assert set(timeoutq.__all__) <= typed


def test_help_needs_no_client() -> None:
    code = "import sys, timeoutq.cli; print(*sorted({'redis', 'asyncio', 'tenacity'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_function_is_longer_than_70_lines_and_no_file_longer_than_600() -> None:
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.lua")]:
        assert len(path.read_text("utf-8").splitlines()) <= 600, path
        if path.suffix == ".py":
            for name, lines in house.module(path).functions:
                assert lines <= 70, f"{path}: {name} has {lines} lines"


def test_only_the_drivers_of_flows_call_the_links() -> None:
    links = [PACKAGE / "link.py", PACKAGE / "memory.py", PACKAGE / "cluster.py"]
    for path in PACKAGE.rglob("*.py"):
        if path not in (*links, PACKAGE / "client" / "driving.py"):
            text = path.read_text("utf-8")
            assert not re.search(r"timeoutq\.link\b|import .*\blink\b|\b_link\(|\.wait_(bell|alarm)\(", text), path


def test_a_method_of_a_face_is_one_line() -> None:
    """A face decides nothing. Walks are loops, and the drivers are no faces of this kind."""
    rooms = [str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("*/face.py") if path.parent.name != "client"]
    assert rooms, "no room has a face"
    for name in ("client/queue.py", "client/async_queue.py", *rooms):
        for node in ast.walk(ast.parse((PACKAGE / name).read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
                is_walk = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
                assert is_walk or len(node.body) == 2, f"{name}: {node.name}"
                assert is_walk or node.body[1].end_lineno == node.body[1].lineno, f"{name}: {node.name}"


def test_a_class_of_the_worker_is_handed_seven_things_at_most() -> None:
    """`Worker` itself takes the settings that users give."""
    for path in (PACKAGE / "worker").glob("*.py"):
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
