"""Where push connects to, and where it does not: addresses in every spelling, names that lead astray, redirects."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import httpcore
import pytest

from tests.rig.receiver import Receiver, receiving, says, status
from timeoutq import InvalidInput
from timeoutq.gateway.push.posting import (
    Answer,
    Checked,
    NotDelivered,
    Poster,
    Target,
    check_name,
    read_target,
    refusal,
    resolve,
)

PUBLIC = ["93.184.216.34", "8.8.8.8", "1.1.1.1", "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450:4001:82a::200e",
          "::ffff:8.8.8.8", "64:ff9b::808:808", "192.0.0.9"]  # fmt: skip

REFUSED = [
    # loopback, and networks that are private, shared, or for tests
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
    "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "::1", "fc00::1", "fd12:3456::1",
    # no machine, many machines, reserved
    "192.0.0.8", "192.88.99.1",
    "0.0.0.0", "0.1.2.3", "255.255.255.255", "224.0.0.1", "239.255.255.255", "240.0.0.1", "::", "ff02::1", "ff0e::1",
    # link-local, where clouds tell their secrets
    "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%lo", "febf::1", "fec0::1",
    # IPv4 inside IPv6
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::7f00:1", "2002:7f00:1::", "2002:0a00:1::1",
    "2002:808:808::1", "2001:0:4136:e378:8000:63bf:80ff:fffe", "2001:0:7f00:1::", "2600::5efe:7f00:1",
    # for documentation, for discarding, for segments
    "2001:db8::1", "3fff::1", "100::1", "5f00::1", "2001:10::1", "4000::1",
    # no address at all
    "localhost", "", "1.2.3.4.5", "256.1.1.1",
]  # fmt: skip

SPELLINGS = [
    "127.0.0.1", "127.1", "127.0.1", "0", "0.0.0.0", "2130706433", "017700000001", "0x7f000001", "0x7f.1",
    "0x7f.0x0.0x0.0x1", "0177.0.0.1", "0177.0.0.01", "00000177.1", "127.000.000.001", "127.0.0.1.", "[::1]",
    "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[::]", "localhost", "LOCALHOST",
    "localhost.", "127。0。0。1", "①②⑦.0.0.1", "１２７.0.0.1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376",
    "169.254.169.254", "[fe80::1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::ffff:a9fe:a9fe]", "10.1", "0xa000001",
    "127.0.0.1%00.example", "[::1%25lo]", "[fe80::1%25lo]", "4294967295", "4294967296", "3232235521", "0300.0250.1",
    "127.0.0.1#@hook.example", "hook.example@127.0.0.1", "127.0.0.1:80@hook.example",
]  # fmt: skip


PRIVATE = {"127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1",
           "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "::1", "fc00::1", "fd12:3456::1",
           "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1"}  # fmt: skip


def test_an_address_that_is_not_public_is_refused_with_its_reason() -> None:
    assert [address for address in PUBLIC if refusal(address) or refusal(address, private=True)] == []
    assert [address for address in REFUSED if not refusal(address)] == []
    assert refusal("64:ff9b::7f00:1") == "a loopback address, 127.0.0.1, inside one of IPv6"


def test_with_allow_private_only_loopback_and_private_networks_are_allowed() -> None:
    assert {address for address in REFUSED if not refusal(address, private=True)} == PRIVATE


# ---- real sockets


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver(host="")) as found:  # on all addresses of this machine, IPv4 and IPv6
        yield found


class Counting(httpcore.AsyncNetworkBackend):
    """Connects nowhere but to loopback, and notes where to it was to connect."""

    def __init__(self) -> None:
        self.to: list[str] = []
        self.real = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        self.to.append(host)
        if not host.startswith("127."):
            raise httpcore.ConnectError("this test connects to loopback only")
        return await self.real.connect_tcp(host, port, timeout, local_address, socket_options)


async def posted(target: Target, network: Checked) -> Answer | NotDelivered:
    async with Poster(target, concurrency=1, seconds=5, network=network) as poster:
        try:
            return await poster.post({"webhook-id": "m"}, b"{}")
        except NotDelivered as error:
            return error


async def test_no_spelling_of_an_inner_address_gets_a_connection(receiver: Receiver) -> None:
    before, counting = receiver.connections, Counting()

    # a real look-up, as the system does it, but for names of the internet
    async def look(name: str, port: int) -> Sequence[str]:
        return ["93.184.216.34"] if name.endswith(".example") else await resolve(name, port)

    for host in SPELLINGS:
        try:
            target = read_target(f"http://{host}:{receiver.port}/")
        except InvalidInput:
            continue  # refused before anything is sent
        assert isinstance(await posted(target, Checked(resolve=look, network=counting)), NotDelivered), host
    assert all(refusal(address) == "" for address in counting.to)
    assert receiver.connections == before


def leading(*answers: Sequence[str]) -> tuple[list[str], Checked, Counting]:
    """Give a network whose name leads to other addresses at each look-up; and what was looked up."""
    looked, counting, left = list[str](), Counting(), list(answers)

    async def look(name: str, port: int) -> Sequence[str]:
        looked.append(name)
        return left.pop(0) if len(left) > 1 else left[0]

    return looked, Checked(resolve=look, network=counting), counting


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"])
async def test_a_name_that_leads_to_such_an_address_gets_no_connection(receiver: Receiver, address: str) -> None:
    before = receiver.connections
    for records in ([address], ["93.184.216.34", address], [address, "93.184.216.34"]):
        _, network, counting = leading(records)
        answer = await posted(Target("http", "hook.example", receiver.port, "hook.example", "/"), network)
        assert isinstance(answer, NotDelivered)
        assert f"nothing was sent: hook.example is at {address}" in answer.reason
        assert "--allow-private" in answer.reason
        assert counting.to == []
    assert receiver.connections == before


async def test_a_name_that_changes_between_the_check_and_the_connection_changes_nothing(receiver: Receiver) -> None:
    before = receiver.connections
    looked, network, counting = leading(["93.184.216.34"], ["127.0.0.1"])
    target = Target("http", "hook.example", receiver.port, "hook.example", "/")
    await posted(target, network)
    assert (looked, counting.to) == (["hook.example"], ["93.184.216.34"]), "one look-up, and what it gave"
    again = await posted(target, network)
    assert isinstance(again, NotDelivered)
    assert "hook.example is at 127.0.0.1" in again.reason
    assert receiver.connections == before


async def test_a_redirect_to_loopback_is_not_followed(receiver: Receiver) -> None:
    with receiving(Receiver()) as first:
        location = f"Location: http://127.0.0.1:{receiver.port}/inner"
        for code in (301, 302, 303, 307, 308):
            first.answer = says(status(code, location))
            before = receiver.connections
            answer = await posted(read_target(first.url, private=True), Checked(private=True))
            assert isinstance(answer, Answer)
            assert (answer.status, receiver.connections) == (code, before)


async def test_a_name_without_an_address_is_a_reason_and_no_connection() -> None:
    async def nowhere(name: str, port: int) -> Sequence[str]:
        raise socket.gaierror(-2, "Name or service not known")

    async def empty(name: str, port: int) -> Sequence[str]:
        return []

    for look in (nowhere, empty):
        answer = await posted(Target("http", "gone.example", 80, "gone.example", "/"), Checked(resolve=look))
        assert isinstance(answer, NotDelivered)
        assert "cannot be reached" in answer.reason


async def test_of_several_addresses_the_next_is_tried(receiver: Receiver) -> None:
    counting = Counting()

    async def look(name: str, port: int) -> Sequence[str]:
        return ["93.184.216.34", "127.0.0.1"]

    receiver.answer = says(status(204))
    network = Checked(private=True, resolve=look, network=counting)
    answer = await posted(Target("http", "two.example", receiver.port, "two.example", "/"), network)
    assert (answer, counting.to) == (Answer(204), ["93.184.216.34", "127.0.0.1"])
    assert receiver.messages[-1].headers["host"] == "two.example"


def test_a_name_that_leads_to_this_machine_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidInput, match=r"loopback address: nothing is sent there; .*--allow-private"):
        check_name(read_target("http://localhost:9/"))
    assert check_name(read_target("http://localhost:9/", private=True)) == ""
    assert "is not known now" in check_name(read_target("https://nobody.invalid/"))


@pytest.mark.parametrize("port", [0, 65_536])
def test_a_receiver_with_a_port_that_nobody_has_is_refused(port: int) -> None:
    # of a larger number, the system takes the lower 16 bits
    with pytest.raises(InvalidInput, match="--to must be a URL"):
        read_target(f"https://hook.example:{port}/")
