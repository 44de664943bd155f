"""Each verb and each look over HTTP: put, claim, wait, expect, on a real Valkey and through real sockets."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
import redis

from tests.functions.running import twice_failing
from tests.gateway.web import Client, client, refused, server, web
from tests.rig.waiting import wait_until
from timeoutq import Politeness
from timeoutq.functions import App
from timeoutq.server.embedded import EmbeddedServer

__all__ = ["client", "server", "web"]


def test_a_task_goes_through_put_claim_and_ack(client: Client) -> None:
    assert client.put("a", {"task": "b", "payload": {"x": [1, None, "é"]}}) == ["added", "added"]
    assert client.put("a") == ["todos"]
    leases = {lease["task"]: lease for lease in client.claim(2)}
    assert leases["b"]["payload"] == {"x": [1, None, "é"]}
    assert leases["a"]["payload"] is None
    assert leases["a"]["attempt"] == 1
    assert leases["a"]["deadline"] > time.time()
    done = client.post("ack", {"leases": list(leases.values())})
    assert done == {"answers": ["ok", "ok"], "counts": {"ok": 2}}
    assert client.post("ack", {"leases": list(leases.values())})["answers"] == ["already", "already"]
    assert client.post("states", {"tasks": ["a", "b", "c"]})["answers"] == ["done", "done", "unknown"]


def test_ids_have_every_byte(client: Client) -> None:
    raw = [bytes([byte]) for byte in range(256)] + [b"\xff\xfe\x00 /?#", bytes(range(256))]
    assert set(client.put(*({"b64": base64.b64encode(id).decode()} for id in raw))) == {"added"}
    for id in raw:
        words = base64.b64encode(id).decode()
        found = client.look("task", b64=words)
        assert found["state"] == "todos"
        told = found["task"]
        assert (base64.b64decode(told["b64"]) if isinstance(told, dict) else told.encode()) == id
        assert client.look("task", b64=words.replace("+", "-").replace("/", "_")) == found
    for lease in client.claim(500):
        assert client.post("ack", {"leases": [lease]})["answers"] == ["ok"]
    assert client.queue.stats().done == len(raw)


def test_payloads_of_bytes_and_of_any_json_come_back_as_json_or_as_text(client: Client) -> None:
    payloads: list[Any] = [{"b64": "AP8="}, [], {}, "", 0, -1.5, True, 2**70, "😀", {"b64": "AA==", "x": [None, "\n"]}]
    tasks = [{"task": str(n), "payload": payload} for n, payload in enumerate(payloads)]
    client.put("none", *tasks)
    assert client.queue.inspect("0").payload == b"\x00\xff"
    leases = client.claim(500)
    found = {lease["task"]: lease["payload"] for lease in leases}
    assert [found[str(n)] for n in range(len(payloads))] == payloads
    client.post("release", {"leases": leases})
    client.queue.put({"written elsewhere": {"text": "\ud800"}})
    texts = {lease["task"]: lease["payload"] for lease in client.claim(500, payloads="text")}
    assert texts["none"] is None
    assert [json.loads(texts[str(n)]) for n in range(len(payloads))] == payloads
    assert json.loads(texts["written elsewhere"]) == {"text": "\ud800"}
    assert "payloads" in refused(client.ask("claim", {"payloads": "xml"}), 422, "bad-body")["detail"]


def test_put_takes_priority_groups_and_again(client: Client) -> None:
    client.queue.configure(politeness=Politeness(60, 1))
    first = {"task": "https://a.example/1", "group": "g"}
    assert client.put(first, {"task": "2", "group": "g", "priority": 1}, {"task": "3", "group": "g"}) == ["added"] * 3
    assert client.put({"task": "3", "group": "g"}, priority=5) == ["raised"]
    assert client.look("task", id="3")["priority"] == 5
    (host,) = client.look("hosts", host="g")["hosts"]
    assert (host["waiting"], host["next_task"], host["next_priority"]) == (2, "3", 5)
    assert [one["host"] for one in client.look("hosts")["hosts"]] == ["g"]
    client.post("block", {"host": "g", "seconds": 100, "reason": "asked to"})
    assert client.look("why", id="3")["code"] == "blocked"
    assert "asked to" in client.look("why", id="3")["message"]
    client.post("unblock", {"host": "g"})
    client.post("ban", {"host": "g", "reason": "gone"})
    wait_until(lambda: client.look("task", id="3")["state"] == "failed")
    client.post("unblock", {"host": "g"})
    assert client.put("2", again=True)[0] in ("added", "waiting", "todos")


def test_extend_release_and_fail(client: Client) -> None:
    client.put("a")
    (lease,) = client.claim(timeout=5)
    assert client.post("extend", {"leases": [lease], "timeout": 60})["answers"] == ["ok"]
    assert client.look("task", id="a")["lease_left"] > 50
    assert client.post("note", {"lease": lease, "done": 1, "total": 3, "text": "page 1"})["answers"] == ["ok"]
    assert client.look("task", id="a")["progress"]["text"] == "page 1"
    assert client.post("release", {"leases": [lease]})["answers"] == ["ok"]
    (lease,) = client.claim()
    assert lease["attempt"] == 1
    assert client.post("fail", {"lease": lease, "error": "bad page", "retry_in": 0})["answers"] == ["ok"]
    (lease,) = client.claim(wait=2)
    assert lease["attempt"] == 2
    assert client.post("fail", {"leases": [lease], "error": "bad again", "give_up": True})["answers"] == ["ok"]
    assert client.look("task", id="a")["error"] == "bad again"
    assert client.look("errors")["errors"][0]["error"] == "bad again"
    (entry,) = client.look("tasks", state="failed")["tasks"]
    assert (entry["task"], entry["error"]) == ("a", "bad again")
    assert client.post("retry", {"tasks": ["a", "b"]})["count"] == 1
    assert client.post("retry", {"tasks": []})["count"] == 0


def test_a_fail_without_the_number_of_the_attempt_goes_by_what_the_queue_has_counted(client: Client) -> None:
    def failed_before(*tasks: str) -> list[dict[str, Any]]:
        client.queue.put(*tasks)
        with redis.Redis.from_url(client.web.redis) as raw:
            raw.hset(f"timeoutq:{{{client.queue.name}}}:attempts", mapping=dict.fromkeys(tasks, "4"))
        return [{"task": lease["task"], "token": lease["token"]} for lease in client.claim(len(tasks))]

    (lease,) = failed_before("a")
    assert client.post("fail", {"lease": lease, "error": "x"})["answers"] == ["ok"]
    assert client.look("task", id="a")["state"] == "failed"
    assert client.post("fail", {"leases": failed_before("b", "c"), "error": "x"})["answers"] == ["ok", "ok"]
    assert client.queue.stats().failed == 3
    client.put("d")
    (first,) = client.claim()
    assert client.post("fail", {"lease": {"task": "d", "token": first["token"]}, "error": "x"})["answers"] == ["ok"]
    assert client.look("task", id="d")["state"] == "scheduled"


def test_an_ack_puts_what_it_found_and_comes_again(client: Client) -> None:
    client.put("a", "b")
    first, second = client.claim(2)
    assert client.post("ack", {"lease": first, "put": ["c", {"task": "d", "payload": 1}]})["answers"] == ["ok"]
    assert client.post("states", {"tasks": ["c", "d"]})["answers"] == ["todos", "todos"]
    assert client.post("ack", {"lease": second, "again_in": 1000, "payload": 7})["answers"] == ["ok"]
    found = client.look("task", id=second["task"])
    assert (found["state"], found["payload"]) == ("scheduled", 7)
    refused(client.ask("ack", {"leases": [first], "put": ["e"]}), 422, "bad-body")
    refused(client.ask("ack", {"leases": [first], "lease": first}), 422, "bad-body")
    refused(client.ask("ack", {}), 422, "bad-body")


def test_a_lost_lease_is_a_problem_alone_and_an_answer_among_many(client: Client) -> None:
    client.put("a", "b")
    first, second = sorted(client.claim(2), key=lambda lease: str(lease["task"]))
    client.post("forget", {"tasks": ["a"]})
    told = refused(client.ask("ack", {"lease": first}), 409, "lease-lost")
    assert (told["task"], told["holder"], told["state"]) == ("a", None, None)
    assert client.post("ack", {"leases": [first, second]})["answers"] == ["lost", "ok"]
    refused(client.ask("extend", {"lease": first}), 409, "lease-lost")


def test_cancel_forget_requeue_pause_and_purge(client: Client) -> None:
    client.put("a", "b", "c")
    assert client.post("cancel", {"tasks": ["a", "x"]})["answers"] == ["cancelled", "unknown"]
    assert client.look("task", id="a")["error"] == "cancelled by anybody"
    assert client.post("requeue", {"tasks": ["a", "mistyped", "b"]})["answers"] == ["added", "unknown", "todos"]
    assert client.post("states", {"tasks": ["mistyped"]})["answers"] == ["unknown"], "a requeue adds no task"
    assert client.post("pause") == {"ok": True}
    assert client.claim() == []
    assert client.look("stats")["paused"] is True
    client.post("resume")
    assert client.post("forget", {"tasks": ["a", "x"]})["answers"] == ["todos", "unknown"]
    assert client.post("purge") == {"ok": True}
    refused(client.http.get(f"{client.home}/stats"), 404, "unknown-queue")
    assert client.put("a") == ["added"]


def test_the_looks_at_a_queue(client: Client) -> None:
    client.put(*map(str, range(250)))
    client.claim(2)
    found = client.look("stats")
    assert (found["todos"], found["in_progress"], found["known"], found["drained"]) == (248, 2, 250, False)
    seen, page = set[str](), client.look("tasks", state="todos", n=50)
    while page["cursor"] is not None:
        seen |= {entry["task"] for entry in page["tasks"]}
        page = client.look("tasks", state="todos", n=50, cursor=page["cursor"])
    assert len(seen | {entry["task"] for entry in page["tasks"]}) == 248
    leases = client.look("tasks", state="in_progress")["tasks"]
    assert {lease["holder"].partition("/")[0] for lease in leases} == {"anybody"}
    assert client.look("workers") == {"workers": []}
    assert isinstance(client.look("history")["history"], list)
    queues = {one["queue"]: one for one in client.http.get(f"{client.web.base}/v1/queues").json()["queues"]}
    assert queues[client.queue.name]["todos"] == 248


def test_what_is_asked_wrongly_is_a_typed_problem(client: Client) -> None:
    client.put("a")
    home, http = client.home, client.http
    assert "there is no 'putt'" in refused(client.ask("putt"), 404, "unknown-verb")["detail"]
    assert refused(http.get(f"{home}/put"), 405, "wrong-method")
    assert http.get(f"{home}/put").headers["allow"] == "POST"
    assert http.post(f"{home}/stats").headers["allow"] == "GET"
    assert "`taks`" in refused(client.ask("put", {"taks": []}), 422, "bad-body")["detail"]
    assert "$.tasks[1]" in refused(client.ask("put", {"tasks": ["a", 7]}), 422, "bad-body")["detail"]
    refused(client.ask("put"), 422, "bad-body")
    refused(client.ask("claim", {"n": 501}), 422, "invalid-input")
    refused(client.ask("claim", {"token": "a/b"}), 422, "bad-body")
    refused(client.ask("claim", {"token": "a@1"}), 422, "bad-body")
    refused(client.ask("claim", {"wait": -1}), 422, "invalid-input")
    refused(http.get(f"{home}/task"), 422, "bad-body")
    refused(http.get(f"{home}/task", params={"b64": "!"}), 422, "bad-body")
    refused(http.get(f"{home}/tasks", params={"state": "nowhere"}), 422, "bad-body")
    refused(http.get(f"{home}/history", params={"by": "null"}), 422, "bad-body")
    refused(http.get(f"{home}/stats", params={"x": 1}), 422, "bad-body")
    refused(http.get(f"{client.web.base}/v1/no%20name/stats"), 404, "unknown-queue")
    refused(http.get(f"{client.web.base}/v1/nobody-has-put/stats"), 404, "unknown-queue")
    refused(http.get(f"{client.web.base}/v1/nothing"), 404, "not-found")


def test_the_description_of_the_api_is_served(client: Client) -> None:
    found = client.http.get(f"{client.web.base}/v1/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    put = found["paths"]["/v1/{queue}/put"]["post"]
    assert set(put["requestBody"]["content"]) == {"application/json", "application/x-ndjson"}
    assert put["x-needs"] == "put"
    answer = put["responses"]["200"]["content"]["application/json"]["schema"]
    assert [one["$ref"].rpartition("/")[2] for one in answer["oneOf"]] == ["Answers", "Lines"]
    text = json.dumps(found)
    for name in found["components"]["schemas"]:
        assert name in text
    for reference in {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}:
        assert reference in found["components"]["schemas"]


def test_failures_by_kind_and_retry_of_one_kind(client: Client) -> None:
    client.put(*map(str, range(30)))
    for n, lease in enumerate(client.claim(30)):
        error = f"HTTPError: {500 + n % 3} of page {n}" if n % 2 else f"ValueError: bad title {n}"
        client.post("fail", {"lease": lease, "error": error, "give_up": True})
    kinds = {one["text"]: one for one in client.look("failures")["kinds"]}
    assert [(text, kinds[text]["count"]) for text in sorted(kinds)] == [
        ("HTTPError: # of page #", 15), ("ValueError: bad title #", 15),
    ]  # fmt: skip
    assert len(client.look("failures", n=1)["kinds"]) == 1
    kind = kinds["HTTPError: # of page #"]["id"]
    assert len(client.look("failures", kind=kind, n=100)["tasks"]) == 15
    first = client.post("retry", {"kind": kind, "at_most": 10})
    assert (first["count"], first["left"]) == (10, 5)
    assert client.post("retry", {"kind": kind, "before": first["before"]})["count"] == 5
    assert client.look("stats")["todos"] == 15
    refused(client.ask("retry", {"kind": kind, "all": True}), 422, "bad-body")
    assert client.post("retry", {"kind": "no such kind"})["count"] == 0
    assert client.post("retry", {"all": True})["count"] == 15


def test_the_event_log_over_http(client: Client) -> None:
    client.queue.configure(events="1MB")
    start = client.look("events")["cursor"]
    client.put("a", "b")
    client.post("ack", {"leases": client.claim(2, token="w1")})
    page = client.look("events", after=start)
    assert [event["verb"] for event in page["events"]] == ["put", "claim", "ack"]
    assert page["events"][1]["by"] == "anybody/w1"
    assert sorted(page["events"][2]["moves"]["in_progress>done"]) == ["a", "b"]
    assert client.look("events", after=page["cursor"])["events"] == []
    assert len(client.look("events", after=0, id="a", n=50)["events"]) == 3
    refused(client.http.get(f"{client.home}/events", params={"after": "x"}), 422, "invalid-input")


def test_schedule_takes_times_with_a_zone(client: Client) -> None:
    assert client.post("schedule", {"tasks": ["a"], "at": "2027-01-31T12:00+01:00"})["answers"] == ["added"]
    (task,) = client.look("tasks", state="scheduled")["tasks"]
    assert 1801393200.0 in task.values()
    told = refused(client.ask("schedule", {"tasks": ["b"], "at": "2027-01-31T12:00"}), 422, "invalid-input")
    assert "has no time zone" in told["detail"]
    assert "time" in refused(client.ask("schedule", {"tasks": ["b"], "at": "soon"}), 422, "bad-body")["detail"]


# ---- lines


def test_a_body_of_json_has_no_parameters_behind_the_question_mark(client: Client) -> None:
    told = refused(client.ask("put", {"tasks": ["a"]}, params={"again": "true"}), 422, "bad-body")
    assert "NDJSON" in told["detail"]
    assert client.queue.stats().known == 0
    described = client.http.get(f"{client.web.base}/v1/openapi.json").json()["paths"]["/v1/{queue}/put"]["post"]
    named = {one["name"] for one in described["parameters"]} - {"queue"}
    assert named == {"again", "rerun", "improve", "group", "priority", "durable"}


def test_lines_are_put_whatever_their_number_and_those_before_a_bad_one_are_in(client: Client) -> None:
    good = b"".join(f'"{n}"\n'.encode() for n in range(5000))
    parts = (good[at : at + 7919] for at in range(0, len(good), 7919))  # lines are cut anywhere
    assert client.lines(parts, again="true").json() == {"lines": 5000, "counts": {"added": 5000}}
    assert client.lines(b'"0"\n \n{"task":"x"}').json() == {"lines": 2, "counts": {"added": 1, "todos": 1}}
    client.post("purge")
    told = refused(client.lines(good + b'{"task":"a","taks":1}' + b'\n"more"\n'), 422, "bad-body")
    assert (told["line"], told["lines"], told["counts"]) == (5001, 5000, {"added": 5000})
    assert "5,000 lines are in" in told["detail"]
    assert client.queue.stats().todos == 5000


@pytest.mark.breaking
def test_a_full_server_says_how_many_lines_are_in(client: Client) -> None:
    client.put("first")
    used = int(client.queue.server()["used_memory"])
    raw = redis.Redis.from_url(client.web.redis)
    raw.config_set("maxmemory", used + 6_000_000)
    try:
        lines = (f'{{"task":"{n}","payload":"{"x" * 2000}"}}\n'.encode() for n in range(60_000))
        told = refused(client.lines(lines), 507, "server-full")
        assert 0 < told["lines"] < 60_000
        assert client.queue.stats().todos >= told["lines"]
        raw.config_set("maxmemory", used)
        refused(client.ask("put", {"tasks": ["y" * 1000]}), 507, "server-full")
        (lease,) = client.claim()
        assert client.post("ack", {"leases": [lease]})["answers"] == ["ok"]
    finally:
        raw.config_set("maxmemory", 0)
        raw.close()


# ---- servers


def test_a_server_that_is_away_is_a_passing_problem(client: Client, server: Any) -> None:
    client.put("a")
    server.kill()
    began = time.monotonic()
    found = client.ask("put", {"tasks": ["b"]})
    refused(found, 503, "unavailable")
    assert int(found.headers["retry-after"]) >= 1
    assert time.monotonic() - began < 10
    assert client.http.get(f"{client.web.base}/healthz").status_code == 200
    server.restart()
    wait_until(lambda: client.ask("put", {"tasks": ["b"]}).status_code == 200)


def test_the_api_of_a_sharded_queue(client: Client, web: Any) -> None:
    from timeoutq import open_queue

    name = f"{client.queue.name}-sharded"
    with open_queue(name, web.redis, shards=3) as queue:
        queue.put([f"https://{n}.example/" for n in range(30)])
        other = Client(web, client.http, client.queue)
        other.home = f"{web.base}/v1/{name}"
        assert other.look("stats")["todos"] == 30
        first = other.claim(30, token="t1")
        again = other.claim(30, token="t1", age=1)
        assert {lease["task"] for lease in again} == {lease["task"] for lease in first} != set()
        assert other.post("ack", {"leases": first})["counts"] == {"ok": len(first)}
        rest: set[str] = set()
        while len(rest) < 30 - len(first):
            leases = other.claim(30, wait=5)
            rest |= {lease["task"] for lease in leases}
        assert len(rest) == 30 - len(first)
        assert other.look("task", id="https://1.example/")["task"] == "https://1.example/"
        queue.purge()


def test_a_queue_that_gets_shards_later_is_opened_anew(client: Client, web: Any) -> None:
    from timeoutq import open_queue

    name = f"{client.queue.name}-later"
    home = f"{web.base}/v1/{name}"
    refused(client.http.get(f"{home}/stats"), 404, "unknown-queue")
    with open_queue(name, web.redis, shards=2) as queue:
        queue.put("a")
        found = client.http.post(f"{home}/claim", json={"wait": 5})
        assert found.status_code == 200, found.text
        assert [lease["task"] for lease in found.json()["leases"]] == ["a"]
        queue.purge()


def test_http_and_the_page_show_records(client: Client, server: EmbeddedServer) -> None:
    app = App(client.queue.name, url=server.url)
    call = twice_failing(app)
    app.close()
    (listed,) = client.look("calls", n=5)["calls"]
    assert listed == client.look("task", id=call.id)["record"]
    assert [one["how"] for one in listed["attempts"]] == ["failed", "failed", "done"]
    page = client.http.get(f"{client.web.base}/q/{client.queue.name}/task", params={"id": call.id})
    assert "ValueError: boom 1" in page.text
    assert "attempt 3" in page.text
