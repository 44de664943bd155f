// A client of one queue: the verbs of timeoutq, with the promises of Python's client. Each method builds its call from
// protocol.json, sends it until it has an answer or the deadline is over, and reads the reply. worker.mjs calls it, and so
// can any program:
//
//   const queue = await Client.open("crawl", { url: "redis://localhost:6379/0" });
//   await queue.put(["https://example.com/", { task: "https://example.com/a", payload: { depth: 1 } }]);
//   for (const lease of await queue.claim(10, { wait: 5 })) await queue.ack([lease]);
//
// Times are seconds, as in Python; a value in milliseconds has Ms in its name. Only the replies of `call`, `stats`, `why`,
// `plan`, `requeueExpired`, `promoteDue` and `prune` keep the names of the protocol, and have their times in milliseconds of
// the server's clock.

import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { fileURLToPath } from "node:url";

import { Link, LinkBroken, ServerSaid } from "./link.mjs";
import { BadReply, InvalidInput, Protocol, bytes, digest } from "./protocol.mjs";

export { BadReply, InvalidInput, Protocol, ServerSaid, digest };

const HERE = fileURLToPath(new URL("protocol.json", import.meta.url));
const NOT_RUN = new Set(["LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "LATE"]);
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const jitter = (ms) => Math.random() * ms;

/** The server could not be asked within the deadline: try again later. */
export class Unavailable extends Error {
  name = "Unavailable";
}

/** Give the bytes of a payload: JSON as Python writes it, or a NUL and the bytes; undefined for none. */
export function pack(payload) {
  if (payload === undefined || payload === null) return undefined;
  if (payload instanceof Uint8Array) return Buffer.concat([Buffer.alloc(1), payload]);
  const text = JSON.stringify(payload);
  if (text === undefined) throw new InvalidInput(`a payload is JSON or bytes, not a ${typeof payload}`);
  return Buffer.from(text.replace(/[\u007f-\uffff]/g, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0")));
}

/** Read a payload back; what another program wrote and is not JSON comes as the Buffer it is. */
export function unpack(data) {
  if (data === null || data === undefined) return null;
  if (data[0] === 0) return data.subarray(1);
  try {
    return JSON.parse(data.toString("utf8"));
  } catch {
    return data;
  }
}

/** Give an id as a string, or as the Buffer it is where it is not UTF-8. */
export function text(id) {
  if (id === null) return null;
  const found = id.toString("utf8");
  return Buffer.from(found, "utf8").equals(id) ? found : id;
}

/** Give the text of an error as it is kept: its name and message, at most 4 KiB. */
export function errorText(error, most = 4096) {
  const said = error instanceof Error ? (error.message ? `${error.name}: ${error.message}` : error.name) : String(error);
  return Buffer.from(said || "unknown error", "utf8").subarray(0, most);
}

// a delay is rounded up, for a task is never early
function ms(seconds, name, rounded = Math.ceil) {
  const found = rounded(seconds * 1000);
  if (!Number.isSafeInteger(found) || found < 0) throw new InvalidInput(`${name} must be seconds, not ${seconds}`);
  return found;
}

const length = (seconds, name) => ms(seconds, name, Math.round);

// the host of a URL that is not plain ASCII: the server cannot tell it, so it goes with the id
function foreignHost(id) {
  if (!/^[^/?#]*:\/\/[^/?#\\]*[^\0-\x7f]/.test(id)) return undefined;
  try {
    return new URL(id).host.replace(/\.+(?=:|$)/, "") || undefined;
  } catch {
    return undefined;
  }
}

// what goes with the ids of tasks, as sections: positions begin at 1. `group` is that of the call
function carried(tasks, group) {
  const at = (name) => tasks.flatMap((task, i) => (task[name] === undefined ? [] : [[i + 1, task[name]]]));
  const flags = (name) => tasks.flatMap((task, i) => (task[name] ? [i + 1] : []));
  const payloads = tasks.flatMap((task, i) => {
    const body = pack(task.payload);
    return body === undefined ? [] : [[i + 1, body]];
  });
  const groups = tasks.flatMap((task, i) => {
    const host = task.group ?? (group === undefined ? foreignHost(task.task) : undefined);
    return host === undefined ? [] : [[i + 1, host]];
  });
  const found = { payloads, groups, priorities: at("priority"), unique: at("unique").map(([i, age]) => [i, ms(age, "unique")]) };
  if (flags("improve").length) found.improve = flags("improve");
  if (flags("rerun").length) found.rerun = flags("rerun");
  return found;
}

const task = (one) => (typeof one === "object" && !(one instanceof Uint8Array) ? one : { task: one });
const several = (tasks) => (Array.isArray(tasks) ? tasks : [tasks]).map(task);

// the options that put and schedule have for all of their tasks
function forAll({ again, group, priority, improve, batch, rerun }, found) {
  const options = { ...found };
  if (group !== undefined) options.group = group;
  if (again) options.again = true;
  if (priority !== undefined) options.priority = priority;
  if (improve) [delete options.improve, (options.improve = [])];
  if (batch !== undefined) options.batch = batch;
  if (rerun) [delete options.rerun, (options.rerun = [])];
  return options;
}

export class Client {
  #link;
  #bell;
  #number = 0;
  #offset = null; // how far the server's clock is ahead of ours, ms
  #closed = false;

  /** Make a client without asking the server. `timeout` is the length of leases, `deadline` that of a call, seconds. */
  constructor(name, { url = process.env.TIMEOUTQ_URL ?? "redis://localhost:6379/0", protocol, library, timeout = 30, deadline = 10, worker } = {}) {
    if (!/^[A-Za-z0-9._-]{1,64}$/.test(name)) throw new InvalidInput(`${name} is not a queue name: use 1 to 64 of A-Z a-z 0-9 . _ -`);
    this.name = name;
    this.protocol = protocol instanceof Protocol ? protocol : Protocol.read(protocol ?? process.env.TIMEOUTQ_PROTOCOL ?? HERE);
    this.timeoutMs = length(timeout, "timeout");
    this.deadlineMs = ms(deadline, "deadline");
    this.worker = worker ?? `${hostname()}:${process.pid}:${randomBytes(4).toString("hex")}`;
    this.#link = new Link(url, { library });
    this.#bell = new Link(url, { library });
  }

  /** Make a client, and look whether the server and the queue are such as this client can serve. */
  static async open(name, options = {}) {
    const client = new Client(name, options);
    try {
      await client.#meet(options.allowEviction);
    } catch (error) {
      await client.close();
      throw error;
    }
    return client;
  }

  async #meet(allowEviction) {
    const [schema, durable] = await this.ask("HMGET", this.key("meta"), "schema", "durable");
    if (schema && schema.toString() !== this.protocol.schema) {
      throw new InvalidInput(`queue ${this.name} has schema ${schema}, and protocol.json is for schema ${this.protocol.schema}: this client serves queues of one shard`);
    }
    if (durable && Number(durable) > 0) throw new InvalidInput(`queue ${this.name} is durable, and this client does not wait for replicas`);
    const policy = /maxmemory_policy:(\S+)/.exec((await this.ask("INFO", "memory")).toString())?.[1];
    if (policy && policy !== "noeviction" && !allowEviction) {
      throw new InvalidInput(`the server may throw tasks away: maxmemory-policy is ${policy}; run 'CONFIG SET maxmemory-policy noeviction'`);
    }
  }

  key(name) {
    return `timeoutq:{${this.name}}:${name}`;
  }

  /** A word that no other call has: this client's name and a number. */
  token() {
    return `${this.worker}#${++this.#number}`;
  }

  async close() {
    this.#closed = true;
    await Promise.all([this.#link.close(), this.#bell.close()]);
  }

  // ---- one call

  /** Give the words of a call, FCALL first, and where its arguments stand. */
  words(verb, values, sections) {
    const first = this.protocol.verb(verb).arguments[0];
    const named = first.name === "call id" && !first.type.startsWith("digest") ? { "call id": first.type === "nonce" ? this.token() : "" } : {};
    const { words, places } = this.protocol.build(verb, { ...named, "age of the call": 0, ...values }, sections);
    // `lock:` is never there: so a node of a cluster from which the slot moves refuses a call before it begins
    const head = [...this.protocol.head(verb, sections), "2", this.key("meta"), this.key("lock:")];
    for (const name of Object.keys(places)) places[name] += head.length;
    return { words: [...head, ...words], places };
  }

  /**
   * Call any verb of the protocol, and give its reply read, times in ms. Raises `InvalidInput` (nothing was sent),
   * `Unavailable`, `ServerSaid`, or `BadReply` (write protocol.json again).
   */
  async call(verb, values, sections, { sentMs = 0 } = {}) {
    const { replayable } = this.protocol.verb(verb);
    let { words, places } = this.words(verb, values, sections);
    const began = performance.now();
    const left = () => this.deadlineMs - (performance.now() - began);
    let mayHaveRun = sentMs > 0;
    for (let tries = 1; ; tries++) {
      const attempt = Math.max(1, Math.min(left(), this.deadlineMs * 0.4));
      let error;
      try {
        if (mayHaveRun) words[places["age of the call"]] = String(Math.max(1, Math.round(performance.now() - began + sentMs)));
        if ("not after" in places) words[places["not after"]] = String((await this.#serverMs()) + Math.floor(attempt * 0.9));
        if ("expected" in places) words[places.expected] = "0";
        const reply = this.protocol.read(verb, await this.#link.send(words, attempt));
        if (reply && "now" in reply) this.#offset = reply.now - performance.now();
        return reply;
      } catch (caught) {
        error = caught;
      }
      if (error instanceof ServerSaid && error.message.includes("Function not found")) {
        await this.#load(attempt);
        if (tries < 4) continue;
      } else if (error.code === "OOM" && sections?.results && !sections.put && !sections.full) {
        ({ words, places } = this.words(verb, values, (sections = { ...sections, full: true })));
        continue;
      } else if (error instanceof ServerSaid && !NOT_RUN.has(error.code)) {
        throw error;
      } else if (error instanceof LinkBroken) {
        mayHaveRun ||= error.sent;
        if (mayHaveRun && !replayable) throw new Unavailable(`${verb} may have run, and is not sent again: ${error.message}`);
      } else if (!(error instanceof ServerSaid)) {
        throw error;
      }
      if (error.code === "LATE") this.#offset = null;
      const tooOld = mayHaveRun && performance.now() - began > this.protocol.limits.sent_again_within_ms;
      if (this.#closed || tooOld || left() < this.deadlineMs * 0.1) throw new Unavailable(`${verb} on queue ${this.name}: ${error.message}`);
      await sleep(jitter(Math.min(20 * 2 ** Math.min(tries, 5), 500, Math.max(0, left()))));
    }
  }

  /** Have the server load the library; an older revision is replaced, a newer one never. */
  async #load(attempt) {
    const { text, about, revision } = this.protocol.library;
    try {
      await this.#link.send(["FUNCTION", "LOAD", text], attempt);
    } catch (error) {
      if (!error.message.includes("already exists")) throw error;
      const [known] = await this.#link.send(["FCALL_RO", about, "0"], attempt);
      if (Number(known) < revision) await this.#link.send(["FUNCTION", "LOAD", "REPLACE", text], attempt);
    }
  }

  /** Send a plain command that only reads. */
  async ask(...words) {
    const began = performance.now();
    for (;;) {
      try {
        return await this.#link.send(words, this.deadlineMs * 0.4);
      } catch (error) {
        const passing = error instanceof LinkBroken || NOT_RUN.has(error.code);
        if (!passing) throw error;
        if (performance.now() - began > this.deadlineMs * 0.6) throw new Unavailable(error.message);
        await sleep(jitter(200));
      }
    }
  }

  async #serverMs() {
    if (this.#offset === null) {
      const asked = performance.now();
      const [seconds, micros] = await this.#link.send(["TIME"], this.deadlineMs * 0.4);
      this.#offset = Number(seconds) * 1000 + Math.floor(Number(micros) / 1000) - asked;
    }
    return Math.floor(this.#offset + performance.now());
  }

  // a letter for each id, in calls of 500
  async #letters(verb, ids, values, sections, name = "letters") {
    let found = "";
    for (let at = 0; at < ids.length; at += this.protocol.limits.ids_in_a_call) {
      const part = ids.slice(at, at + this.protocol.limits.ids_in_a_call);
      const reply = await this.call(verb, { ...values(part, at), id: part }, sections?.(at, part.length));
      found += reply[name];
    }
    return found;
  }

  // ---- tasks in

  /** Put tasks: ids, or {task, payload, group, priority, unique, improve, rerun}. Gives a letter for each, as put.lua says. */
  put(tasks, options = {}) {
    return this.#brought("put", tasks, {}, options);
  }

  /** Schedule tasks `after` seconds, or `at` a moment in Unix seconds. */
  schedule(tasks, { at, after, ...options } = {}) {
    if ((at === undefined) === (after === undefined)) throw new InvalidInput("say when: either at or after, seconds");
    const due = after === undefined ? ms(at, "at") : `+${ms(after, "after")}`;
    return this.#brought("schedule", tasks, { due }, options);
  }

  async #brought(verb, tasks, values, options) {
    let found = "";
    for (const part of this.parts(several(tasks))) {
      const call = { ...values, id: part.map((one) => one.task) };
      if (options.nonce !== undefined) call["call id"] = options.nonce;
      found += (await this.call(verb, call, forAll(options, carried(part, options.group)))).letters;
    }
    return found;
  }

  /** Cut tasks into parts for one call each: 500 ids, and a MiB of payloads. */
  *parts(tasks) {
    const { ids_in_a_call: most, payload_bytes_in_a_call: heavy, payload_bytes: largest } = this.protocol.limits;
    let part = [];
    let weight = 0;
    for (const one of tasks) {
      const more = pack(one.payload)?.length ?? 0;
      if (more > largest + 1) throw new InvalidInput(`the payload of task ${String(one.task).slice(0, 80)} has ${more} bytes; the limit is ${largest}`);
      if (part.length === most || (weight && weight + more > heavy)) {
        yield part;
        [part, weight] = [[], 0];
      }
      part.push(one);
      weight += more;
    }
    if (part.length) yield part;
  }

  // ---- leases

  /** Claim up to n leases; wait up to `wait` seconds for the first one. */
  async claim(n = 1, { wait = 0, timeout, maxRuntime, share, signal } = {}) {
    const until = performance.now() + wait * 1000;
    const options = { timeout, maxRuntime, share };
    for (;;) {
      const found = await this.claimOnce(n, options);
      if (found.leases.length) return found.leases;
      let pause = this.protocol.limits.bell_wait_ms;
      if (found.nextMs && found.nextMs <= found.nowMs) {
        if ((await this.clean()) && !found.paused) continue;
        pause = 250;
      } else if (found.nextMs) {
        pause = Math.min(pause, found.nextMs - found.nowMs);
      }
      const left = until - performance.now();
      if (left <= 0 || signal?.aborted) return [];
      await this.hearBell(Math.min(pause, left) / 1000, signal);
    }
  }

  /** Ask once for up to n leases: gives them, or when something is due next, server ms. */
  async claimOnce(n, { timeout, maxRuntime, share, token = this.token() } = {}) {
    const values = {
      token, "how many": Math.min(n, this.protocol.limits.ids_in_a_call), "not after": 0,
      timeout: timeout === undefined ? this.timeoutMs : length(timeout, "timeout"),
    };
    const sections = { max_runtime: maxRuntime && length(maxRuntime, "maxRuntime"), share: share > 1 ? share : undefined };
    const leases = new Map();
    let reply = await this.call("claim", values, sections);
    for (;;) {
      for (const lease of this.#leases(reply, token)) leases.set(lease.id.toString("latin1"), lease);
      if (reply.from === undefined) break;
      reply = await this.call("claim", values, { ...sections, from: reply.from }, { sentMs: 1 });
    }
    return { leases: [...leases.values()], nowMs: reply.now, nextMs: reply["next event"] ?? 0, paused: Boolean(reply.paused) };
  }

  #leases(reply, token) {
    if (!reply.id) return [];
    const first = BigInt(reply["first fence"].toString());
    return reply.id.map((id, at) => ({
      task: text(id), id, token, deadlineMs: reply.deadline,
      attempt: Number(reply.failures?.[at] ?? 0) + 1, crashes: Number(reply.crashes?.[at] ?? 0),
      fence: String(first + BigInt(at)), payload: unpack(reply.payload?.[at] ?? null),
    }));
  }

  /** Wait until a task may be ready, at most `seconds`. */
  async hearBell(seconds, signal) {
    const within = Math.max(0.01, seconds);
    let stop;
    const stopped = new Promise((done) => {
      stop = done;
      signal?.addEventListener("abort", stop, { once: true });
    });
    try {
      await Promise.race([this.#bell.send(["BLPOP", this.key("bell"), within.toFixed(3)], within * 1000 + 2000), stopped]);
    } catch {
      await sleep(jitter(200)); // the next claim says what is wrong
    } finally {
      signal?.removeEventListener("abort", stop);
    }
  }

  async #ended(verb, leases, values, sections) {
    const tokens = leases.map((lease) => lease.token);
    const ids = leases.map((lease) => lease.id ?? lease.task);
    return this.#letters(verb, ids, (part, at) => ({ token: tokens.slice(at, at + part.length), ...values?.(at, part.length) }), sections);
  }

  /** Extend leases from now on, by their usual timeout or by `timeout` seconds. Gives a letter for each, as extend.lua says. */
  async extend(leases, timeout) {
    const lasts = timeout === undefined ? this.timeoutMs : length(timeout, "timeout");
    return this.#ended("extend", leases, () => ({ timeout: lasts }));
  }

  /** Ack leases. `againIn` seconds: the tasks are ready again then. For one lease: `put` tasks that it found, `payload`. */
  async ack(leases, { againIn, payload, put, result, keepResult, bare } = {}) {
    if ((put || payload !== undefined || result !== undefined) && leases.length > 1) throw new InvalidInput("put, payload and result are for one lease");
    let found = several(put ?? []);
    const most = this.protocol.limits.ids_in_a_call - 1;
    const parts = [...this.parts(found)];
    if (parts.length > 1 || found.length > most) {
      // what does not fit into the call goes before the ack, so that nothing is lost between the two
      await this.put(found);
      found = [];
    }
    const sections = { again: againIn === undefined ? undefined : ms(againIn, "againIn"), payload: pack(payload) };
    if (found.length) Object.assign(sections, { put: found.map((one) => one.task) }, carried(found));
    if (result !== undefined) Object.assign(sections, { results: [[1, result]], times: [[1, keepResult === undefined ? this.protocol.limits.result_kept_ms : ms(keepResult, "keepResult")]] });
    if (bare) sections.bare = [];
    return this.#ended("ack", leases, undefined, () => sections);
  }

  /** Give leases back, after `delay` seconds, blocking their hosts for `block` seconds. */
  async release(leases, { delay = 0, block = 0, most = 0, within = 0 } = {}) {
    const some = (seconds, name) => (seconds ? ms(seconds, name) : undefined);
    const sections = { delay: some(delay, "delay"), block: some(block, "block"), most: most || undefined, within: some(within, "within") };
    return this.#ended("release", leases, undefined, () => sections);
  }

  /** Fail leases: `ends` has for each {error, retryIn, block, trace}; without `retryIn` seconds the task goes to failed. */
  async fail(leases, ends) {
    if (ends.length !== leases.length) throw new InvalidInput("fail needs an end for each lease");
    const traces = ends.map((end) => (end.trace ? bytes(end.trace) : null));
    return this.#ended(
      "fail",
      leases,
      (at, count) => ({
        retry: ends.slice(at, at + count).map((end) => (end.retryIn === undefined ? -1 : ms(end.retryIn, "retryIn"))),
        error: ends.slice(at, at + count).map((end) => errorText(end.error, this.protocol.limits.error_bytes)),
      }),
      (at, count) => {
        const blocks = ends.slice(at, at + count).flatMap((end, i) => (end.block ? [[i + 1, ms(end.block, "block")]] : []));
        const digests = traces.slice(at, at + count).flatMap((trace, i) => (trace ? [[i + 1, digest(trace)]] : []));
        const texts = new Map(traces.slice(at, at + count).filter(Boolean).map((trace) => [digest(trace), trace]));
        return { blocks, traces: digests, texts: texts.size ? [...texts].flat() : undefined };
      },
    );
  }

  // ---- by id

  /** Remove tasks from every state. Gives the letter of the state that each was in, u for none. */
  forget(ids) {
    return this.#byId("forget", ids, { "call id": this.token() }); // an event log names who calls by the id of the call
  }

  /** Make failed tasks ready again. */
  retryFailed(ids) {
    return this.#byId("retry_failed", ids, { "call id": this.token(), "at most": this.protocol.limits.ids_in_a_call });
  }

  /** Make any failed tasks ready again, at most 500; gives how many. */
  async retryAnyFailed() {
    const reply = await this.call("retry_failed", { "call id": this.token(), "at most": this.protocol.limits.ids_in_a_call, id: [] });
    return Object.values(reply)[0];
  }

  /** Cancel tasks; `by` says who does. */
  cancel(ids, by = this.worker) {
    return this.#letters("cancel", ids.map((id) => bytes(id)), () => ({ by }));
  }

  /** Give the letter of the state of each id, u for none. */
  states(ids) {
    return this.#byId("states", ids, {});
  }

  #byId(verb, ids, values) {
    return this.#letters(verb, ids.map((id) => bytes(id)), () => (values));
  }

  // ---- looking

  /** Give the sizes of the states, the counters and the settings, at one moment; `now`, `next due`, … are in ms. */
  async stats() {
    const found = await this.call("stats", {});
    const texts = (row) => row.map((word) => word.toString());
    const zip = (names, values) => Object.fromEntries(texts(names).map((name, at) => [name, values[at]]));
    return {
      ...found,
      counters: zip(found.counter, texts(found.count).map(Number)),
      settings: zip(found.setting, texts(found.value)),
    };
  }

  /** Give all that is known of one task. */
  async inspect(id) {
    const found = await this.call("inspect", { id });
    const said = (word) => (word === null ? null : word.toString());
    const [error, at] = errorLine(found.error);
    return {
      task: text(bytes(id)), state: this.protocol.states[found.letter] ?? null, failures: Number(found.failures ?? 0), crashes: Number(found.crashes ?? 0),
      holder: said(found.token)?.split("#")[0] ?? null, error, errorAtMs: at, payload: unpack(found.payload), host: said(found.host),
      dueMs: found.due, deadlineMs: found.deadline, priority: Number(found.priority ?? 0), cancelledBy: said(found["cancelled by"]),
    };
  }

  /** Give all facts that decide whether a task is being worked on, as why.lua replies them. */
  why(id, host = "") {
    return this.call("why", { id, host });
  }

  /** Give the kinds of failures, the largest first: {text, count}. The empty text is that of all kinds beyond the thousandth. */
  async failures() {
    const row = await this.ask("HGETALL", this.key("kinds"));
    const fields = new Map();
    for (let at = 0; at < row.length; at += 2) fields.set(row[at].toString("latin1"), row[at + 1]);
    const found = [];
    for (const [field, count] of fields) {
      const number = /^\+(\d{1,4})$/.exec(field)?.[1];
      const words = number === "0" ? Buffer.alloc(0) : fields.get(`#${number}`);
      if (number && words && Number(count) > 0) found.push({ text: words.toString("utf8"), count: Number(count) });
    }
    return found.sort((one, other) => other.count - one.count);
  }

  /** Make all failed tasks of a kind ready again; gives how many. Tasks that are given up meanwhile are left. */
  retryKind(text) {
    return this.#moveKind("retry", text);
  }

  /** Forget all failed tasks of a kind; gives how many. */
  forgetKind(text) {
    return this.#moveKind("forget", text);
  }

  async #moveKind(act, text) {
    let moved = 0;
    for (let before = 0, left = 1; left > 0; ) {
      const found = await this.call("kind", { act, text, before, most: this.protocol.limits.ids_in_a_call });
      moved += found.moved;
      ({ before } = found);
      left = found.moved ? found.left : 0;
    }
    return moved;
  }

  // ---- the cleaner's

  requeueExpired(n = 200) {
    return this.call("requeue_expired", { "at most": n, expected: 0 });
  }

  promoteDue(n = this.protocol.limits.ids_in_a_call) {
    return this.call("promote_due", { "at most": n });
  }

  prune(n = this.protocol.limits.ids_in_a_call, cursor = "0") {
    return this.call("prune", { "at most": n, cursor });
  }

  /** Say how long a cleaner may sleep, at most `longest` seconds; the server also takes a sample for the history. */
  plan(longest) {
    return this.call("plan", { "longest sleep": ms(longest, "longest") });
  }

  /** Take expired leases back, and make due tasks ready, until nothing more is due; gives how many tasks were moved. */
  async clean() {
    let moved = 0;
    for (const round of [() => this.requeueExpired(), () => this.promoteDue()]) {
      for (let more = true; more; ) {
        const found = await round();
        moved += (found["taken back"] ?? 0) + (found["gone to failed"] ?? 0) + (found.promoted ?? 0);
        more = Boolean(found.more);
      }
    }
    return moved;
  }
}

function errorLine(line) {
  const found = line === null ? "" : line.toString();
  const at = found.indexOf(" ");
  return at < 0 ? [null, null] : [found.slice(at + 1), Number(found.slice(0, at))];
}
