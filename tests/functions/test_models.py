"""Models of pydantic and structs of msgspec are arguments and results, where the annotation says so."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field

from tests.functions.running import work
from timeoutq import Queue
from timeoutq.functions import App, BadArguments, BadFunction, CallFailed


class Line(BaseModel):
    price: Decimal
    of: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Bill(BaseModel):
    model_config = ConfigDict(extra="forbid")
    to: str = Field(alias="To", min_length=1)
    lines: list[Line] = []

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's manual has it
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal(0))


class Tags(RootModel[list[str]]):
    pass


class Place(msgspec.Struct):
    city: str
    tags: Tags | None = None


class Odd(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    what: Queue


USUAL = Tags(["a"])
BILL = Bill(To="ann", lines=[Line(price=Decimal("1.10")), Line(price=Decimal(2))])


def test_models_go_to_the_worker_and_come_back(app: App, queue: Queue) -> None:
    seen: list[Any] = []

    @app.task(key="pay:{bill}")
    async def pay(bill: Bill, place: Place | None = None, *more: Line, usual: Tags = USUAL) -> Bill:
        seen.append((bill, place, more, usual))
        return bill

    @app.task
    def total(bill: Bill, tags: dict[str, Tags]) -> list[Line]:
        assert isinstance(bill, Bill)
        return [Line(price=bill.total), *bill.lines[: len(tags)]]

    place = Place("Bern", Tags(["x", "y"]))
    first = pay.delay(BILL, place, BILL.lines[0], usual=Tags([]))
    second = pay.call(Bill(To="bob")).then(total, {"t": Tags(["z"])}).delay()
    loose = total.delay({"To": "eve", "lines": [{"price": "3"}]}, {})  # type: ignore[arg-type]  # what it is made of
    assert pay.delay(BILL.model_copy()).added is False, "equal models make equal ids"
    work(app)
    assert (BILL, place, (BILL.lines[0],), Tags([])) in seen
    assert (Bill(To="bob"), None, (), USUAL) in seen
    assert (first.wait(5), second.wait(5)) == (BILL, [Line(price=Decimal(0))])
    assert loose.wait(5) == [Line(price=Decimal(3))]
    assert queue.stats().failed == 0


def test_a_call_with_a_model_that_does_not_fit_is_refused_where_it_is_made(app: App) -> None:
    class More(Line):
        note: str = ""

    @app.task
    async def pay(bill: Bill, line: Line | None = None, anything: Any = None) -> None: ...

    with pytest.raises(BadArguments, match=r"pay\(\) got .* for 'bill': To: Field required; lines.0.price: Input"):
        pay.call({"lines": [{"price": "much"}]})  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BadArguments, match="for 'bill': Bill: Input should be a valid dictionary"):
        pay.call(3)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(BadArguments, match="for 'anything', but would get"):
        pay.call(BILL, None, BILL)
    with pytest.raises(BadArguments, match="for 'line', but would get"):
        pay.call(BILL, More(price=Decimal(1), note="gone"))
    with pytest.raises(BadArguments, match="Encoding objects of type object is unsupported"):
        pay.call(BILL, None, object())


def test_a_function_whose_model_cannot_be_json_is_refused(app: App) -> None:
    def odd(what: Odd) -> None: ...

    def both(what: Line | Bill) -> None: ...

    with pytest.raises(BadFunction, match=r"odd\(\): 'what' cannot be passed: .*JsonSchema"):
        app.task(odd)
    with pytest.raises(BadFunction, match=r"both\(\): 'what' cannot be passed: .*more than one custom type"):
        app.task(both)


def test_a_result_that_is_no_such_model_for_the_caller_is_an_error(app: App, url: str) -> None:
    @app.task(name="make")
    def make() -> Line:
        return Line(price=Decimal(1))

    other = App(app.name, url=url)

    @other.task(name="make")
    def other_make() -> Bill:
        raise NotImplementedError

    result = make.delay()
    work(app)
    with pytest.raises(CallFailed, match="does not fit what the function says here: To: Field required"):
        other.result(result.id, other_make).wait(5)
    other.close()


def test_the_schema_of_a_function_holds_that_of_its_models(app: App) -> None:
    @app.task
    async def pay(bill: Bill, line: Line) -> None: ...

    k = pay.schema()["properties"]["k"]["properties"]
    assert (k["bill"]["$id"], set(k["bill"]["$defs"])) == (f"urn:{__name__}.Bill", {"Line"})
    assert k["line"]["required"] == ["price"]


def test_a_program_without_pydantic_imports_none_of_it() -> None:
    code = """if True:
        import sys
        from timeoutq.functions import App
        app = App("mail")
        @app.task
        def f(x: dict[str, list[int]]) -> None: ...
        f.call({"a": [1]})
        try:
            f.call({"a": [object()]})
        except TypeError as error:
            print("pydantic" in sys.modules, error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False f() got")
