"""The two faces have the same methods, with the same words."""

from __future__ import annotations

import inspect

from timeoutq import AsyncQueue, Queue


def public(kind: type) -> dict[str, object]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and inspect.isfunction(value)}


def test_both_have_the_same_methods_in_the_same_order() -> None:
    assert list(public(Queue)) == list(public(AsyncQueue))
    assert len(public(Queue)) > 25


def test_signatures_and_docstrings_are_equal_and_all_of_the_second_are_async() -> None:
    for name, method in public(Queue).items():
        twin = vars(AsyncQueue)[name]
        ours, theirs = inspect.signature(method), inspect.signature(twin)  # type: ignore[arg-type]  # functions
        assert inspect.isgeneratorfunction(method) is inspect.isasyncgenfunction(twin), name
        if inspect.isgeneratorfunction(method):
            ours = ours.replace(return_annotation=f"Async{ours.return_annotation}")
        assert ours == theirs, name
        assert inspect.getdoc(method) == inspect.getdoc(twin), name
        assert inspect.getdoc(method), name
        assert inspect.iscoroutinefunction(twin) or inspect.isasyncgenfunction(twin), name
        assert not inspect.iscoroutinefunction(method), name
