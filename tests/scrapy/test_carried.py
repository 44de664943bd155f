"""What `meta` and `cb_kwargs` hold arrives as it was sent, as from Scrapy's own JOBDIR."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import pytest

from timeoutq.words.errors import InvalidInput

pytest.importorskip("scrapy")

import pydantic
from scrapy import Field, FormRequest, Item, Request, Spider
from scrapy.http import JsonRequest


class Author(Item):
    """The item of a tutorial: one page fills in a part, the next page the rest."""

    name = Field()
    born = Field()


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """A dataclass that checks what it is given."""

    amount: Decimal
    tags: frozenset[str]
    half: Decimal = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.amount / 2)


@attrs.define
class Shelf:
    """A class of attrs."""

    books: list[Any]


class Offer(pydantic.BaseModel):
    """A model of pydantic."""

    until: datetime


class Point(NamedTuple):
    """A tuple with names."""

    x: int
    y: int


class Size(enum.Enum):
    """A choice."""

    SMALL = "s"


class Rendered(Request):
    """A request for a browser, whose middleware looks at the class and at what only this class has."""

    def __init__(self, *args: Any, wait: object = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.wait = wait


class Slotted(Rendered):
    """A request that keeps what it has in slots."""

    __slots__ = ("script",)
    script: str


class Shop(Spider):
    """The spider whose requests carry them."""

    name = "shop"

    def parse(self, response: Any) -> None:
        """Do nothing."""


VALUES: list[Any] = [
    Author(name="Jane", born=date(1775, 12, 16)),
    Price(Decimal("9.90"), frozenset({"new"})),
    Shelf([Price(Decimal(1), frozenset()), (1, 2)]),
    Offer(until=datetime(2026, 11, 28, tzinfo=UTC)),
    Point(1, 2),
    Size.SMALL,
    date(2026, 1, 2),
    datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # sites tell times without a zone
    datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    time(12, 30),
    timedelta(days=-1, microseconds=3),
    Decimal("1E-50"),
    uuid.UUID(int=7),
    b"\xff\x00",
    {1, 2, 3},
    frozenset({"a"}),
    (1, ("two", [3])),
    {1: "one", (2, 3): "pair", None: {b"k": 1}},
    {"$type": "date", "value": "2026-01-02"},
    {"$type": {"$type": []}},
    float("inf"),
    [None, True, 1, 1.5, "é", {"a": [{}]}],
]


def carried(request: Request, spider: Spider) -> Request:
    from timeoutq.scrapy.tasks import payload_of, request_of

    payload, _ = payload_of(request, spider, request.url, request.errback)
    return request_of(request.url, json.loads(json.dumps(payload, allow_nan=False)), spider)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_what_a_request_carries_arrives_as_it_was_sent(value: Any) -> None:
    request = Request("https://a.example/", meta={"it": value}, cb_kwargs={"it": [value]})
    arrived = carried(request, Shop())
    for found in (arrived.meta["it"], arrived.cb_kwargs["it"][0]):
        assert found == value
        assert type(found) is type(value)
    again = carried(arrived, Shop())
    assert again.meta == request.meta


def test_a_request_of_a_class_of_its_own_arrives_as_that_class_with_all_that_it_has() -> None:
    made = Slotted("https://a.example/", wait=2.5, method="PUT", body=b"a", meta={"it": 1})
    made.script = "scroll()"
    arrived = carried(carried(made, Shop()), Shop())
    assert isinstance(arrived, Slotted)
    assert (arrived.wait, arrived.script, arrived.method, arrived.body) == (2.5, "scroll()", "PUT", b"a")
    assert arrived.meta == {"it": 1}


def test_forms_and_json_arrive_as_scrapy_made_them() -> None:
    form = carried(FormRequest("https://a.example/", formdata={"a": "1"}), Shop())
    assert (type(form), form.method, form.body) == (FormRequest, "POST", b"a=1")
    made = JsonRequest("https://a.example/", data={"b": 1, "a": 2}, dumps_kwargs={"sort_keys": False})
    arrived = carried(made, Shop())
    assert type(arrived) is JsonRequest
    assert arrived.replace(data=[{"b": 1, "a": 2}]).body == b'[{"b": 1, "a": 2}]'


def test_what_only_the_class_of_a_request_has_is_refused_if_it_cannot_travel() -> None:
    with pytest.raises(InvalidInput, match=r"the request\['wait'\] holds an object of type object"):
        carried(Rendered("https://a.example/", wait=object()), Shop())


def test_a_request_of_a_class_that_is_not_in_this_version_waits() -> None:
    from timeoutq.scrapy.tasks import MissingMethod, request_of

    with pytest.raises(MissingMethod, match="has no class"):
        request_of("https://a.example/", {"class": f"{__name__}:Gone"}, Shop())
    with pytest.raises(InvalidInput, match="is no class of"):
        request_of("https://a.example/", {"class": "subprocess:Popen"}, Shop())


def test_a_zone_stays_and_no_number_stays_none() -> None:
    values = VALUES[9], float("nan")
    zoned, number = carried(Request("https://a.example/", meta={"it": values}), Shop()).meta["it"]
    assert (zoned.tzinfo, zoned.fold, zoned.utcoffset()) == (ZoneInfo("Europe/Berlin"), 1, timedelta(hours=1))
    assert number != number


def test_two_equal_sets_have_one_payload() -> None:
    from timeoutq.scrapy.tasks import payload_of

    sets = [{"a", "b", "c", "d"}, {"d", "c", "b", "a"}]
    one, other = (payload_of(Request("https://a.example/", meta={"it": it}), Shop(), "", None)[0] for it in sets)
    assert json.dumps(one) == json.dumps(other)


@pytest.mark.parametrize(
    "value", [object(), collections.deque([1]), print, Shop], ids=lambda value: type(value).__name__
)
def test_what_cannot_travel_is_refused_by_its_type_and_place(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be put into the queue: meta\['it'\]\[0\] holds"):
        carried(Request("https://a.example/", meta={"it": [value]}), Shop())


def test_a_class_inside_a_function_is_refused_where_the_request_is_made() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    with pytest.raises(InvalidInput, match="which no other process can find by its name"):
        carried(Request("https://a.example/", meta={"it": Local(1)}), Shop())


@pytest.mark.parametrize(
    "form",
    [
        {"$type": "item", "class": "os:system", "value": []},
        {"$type": "item", "class": "subprocess:Popen", "value": []},
        {"$type": "item", "class": "builtins:dict", "value": []},
        {"$type": "enum", "class": "os:sep", "value": "a"},
        {"$type": "date", "value": "yesterday"},
        {"$type": "date"},
        {"$type": "dict", "value": [[1]]},
        {"$type": "bytes", "value": "?"},
        {"$type": "set", "value": [[]]},
        {"$type": "pickle", "value": "gASVBQ"},
        {"$type": 5},
    ],
    ids=str,
)
def test_a_payload_made_by_hand_builds_nothing_but_items(form: Any) -> None:
    from timeoutq.scrapy.tasks import MissingMethod, request_of

    with pytest.raises(InvalidInput, match="is no request of Scrapy") as raised:
        request_of("https://a.example/", {"meta": {"it": form}}, Shop())
    assert not isinstance(raised.value, MissingMethod)


@pytest.mark.parametrize("name", [f"{__name__}:Gone", "antigravity:Item", "tests.rig.no_such:Item"])
def test_a_task_whose_class_is_not_in_this_version_waits(name: str) -> None:
    from timeoutq.scrapy.tasks import MissingMethod, request_of

    form = {"$type": "item", "class": name, "value": []}
    with pytest.raises(MissingMethod, match="the task waits for a process"):
        request_of("https://a.example/", {"meta": {"it": form}}, Shop())
