// The player of transcripts in JavaScript: tests/rig/transcripts.py says what a line is. play.mjs and build.mjs call it.

import { unpack } from "../../demo/node/client.mjs";

export function fits(expected, found) {
  if (expected === "*") return true;
  if (Array.isArray(expected)) return Array.isArray(found) && expected.length === found.length && expected.every((one, at) => fits(one, found[at]));
  if (expected !== null && typeof expected === "object") {
    return found !== null && typeof found === "object" && Object.keys(expected).every((name) => name in found && fits(expected[name], found[name]));
  }
  return expected === found;
}

export function raw(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  if ("b64" in value) return Buffer.from(value.b64, "base64");
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, raw(one)]));
}

// as Python's str.isprintable(), for the characters that transcripts have
const printable = (text) => !/[\u0000-\u001f\u007f-\u00a0]/.test(text);

function shown(value) {
  if (Buffer.isBuffer(value)) return { b64: value.toString("base64") };
  return typeof value === "string" && !printable(value) ? { b64: Buffer.from(value).toString("base64") } : value;
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

export class Player {
  kept = {};
  age = 0;

  constructor(queue) {
    this.queue = queue;
    const call = queue.call.bind(queue);
    queue.call = (verb, values, sections, options) => call(verb, values, sections, this.age ? { sentMs: this.age } : options);
  }

  async play(steps) {
    for (const [at, { call, args = {}, expect = "*", age = 0, until }] of steps.entries()) {
      this.age = age;
      let found;
      const began = Date.now();
      do {
        found = await this[call](args);
        if (until && !fits(expect, found)) await new Promise((done) => setTimeout(done, 5));
      } while (until && !fits(expect, found) && Date.now() - began < 5000);
      if (!fits(expect, found)) throw new Error(`line ${at + 1}, ${call}: expected ${JSON.stringify(expect)}, got ${JSON.stringify(found)}`);
    }
  }

  leases({ of, tasks }) {
    const held = this.kept[of];
    return tasks ? tasks.map((task) => held.find((lease) => same(shown(lease.task), task))) : held;
  }

  tasks = (given) => given.map(raw);

  put({ tasks, ...how }) {
    return this.queue.put(this.tasks(tasks), how);
  }

  schedule({ tasks, ...how }) {
    return this.queue.schedule(this.tasks(tasks), how);
  }

  async claim({ n, timeout = 30, max_runtime: maxRuntime, as }) {
    const token = this.age ? this.kept[as][0].token : undefined;
    const { leases } = await this.queue.claimOnce(n, { timeout, maxRuntime, token });
    leases.sort((one, other) => Buffer.compare(one.id, other.id));
    if (as) this.kept[as] = leases;
    return leases.map(({ task, attempt, crashes, payload }) => ({ task: shown(task), attempt, crashes, payload: shown(payload) }));
  }

  extend({ leases, timeout }) {
    return this.queue.extend(this.leases(leases), timeout);
  }

  ack({ leases, again_in: againIn, keep_result: keepResult, put, result, ...options }) {
    return this.queue.ack(this.leases(leases), { againIn, keepResult, put: put && this.tasks(put), result: result && raw(result), ...options });
  }

  release({ leases, ...options }) {
    return this.queue.release(this.leases(leases), options);
  }

  fail({ leases, ends }) {
    return this.queue.fail(this.leases(leases), ends.map(({ retry_in: retryIn, ...end }) => ({ retryIn, ...end })));
  }

  async #held(verb, leases, values) {
    const held = this.leases(leases);
    const reply = await this.queue.call(verb, { token: held.map((one) => one.token), id: held.map((one) => one.id), ...values });
    return reply.letters ?? reply.letter;
  }

  crash({ leases, reason }) {
    return this.#held("crash", leases, { reason });
  }

  note({ leases, done, of, text }) {
    return this.#held("note", leases, { done, "of how much": of, text });
  }

  forget = ({ ids }) => this.queue.forget(ids.map(raw));
  retry_failed = ({ ids }) => this.queue.retryFailed(ids.map(raw));
  retry_any = () => this.queue.retryAnyFailed();
  cancel = ({ ids, by }) => this.queue.cancel(ids.map(raw), by);
  states = ({ ids }) => this.queue.states(ids.map(raw));

  async pull({ n }) {
    const { id, payload } = await this.queue.call("pull", { "call id": this.queue.token(), "how many": n });
    const rows = id.map((one, at) => ({ task: shown(one.toString()), payload: shown(unpack(payload[at])) }));
    return rows.sort((one, other) => (one.task < other.task ? -1 : 1));
  }

  async inspect({ id }) {
    const { task, state, failures, crashes, error, payload, priority, host, cancelledBy, dueMs } = await this.queue.inspect(raw(id));
    return { task: shown(task), state, failures, crashes, error, payload: shown(payload), priority, host, cancelled_by: cancelledBy, is_due: dueMs !== null };
  }

  stats = () => this.queue.stats();
  drained = async () => Boolean((await this.queue.call("drained", { before: "+inf", cursor: "0", counted: 0 })).drained);

  failures = () => this.queue.failures();
  retry_kind = ({ text }) => this.queue.retryKind(text);
  forget_kind = ({ text }) => this.queue.forgetKind(text);

  async why({ id }) {
    const { paused, todos, workers, stranded } = await this.queue.why(raw(id));
    return { paused: Boolean(paused), todos, workers, stranded: Boolean(stranded) };
  }

  async configure({ settings }) {
    return (await this.queue.call("configure", { name: Object.keys(settings), value: Object.values(settings) }))["what to do next"];
  }

  convert = async () => (await this.queue.call("convert", { "at most": 250 }))["where it goes on"].toString();

  async host({ host, rules = [] }) {
    const found = await this.queue.call("host", { host, rule: rules.map(([name]) => name), value: rules.map(([, value]) => value) });
    if (found === null) return null;
    return { host: found.host.toString(), waiting: found.waiting, per_host: found.per_host, banned: found.flag.toString() === "x" ? found.reason.toString() : null };
  }

  async requeue_expired() {
    const found = await this.queue.requeueExpired();
    return { ...found, more: Boolean(found.more) };
  }

  async promote_due() {
    const found = await this.queue.promoteDue();
    return { ...found, more: Boolean(found.more) };
  }

  async prune() {
    const found = await this.queue.prune();
    return { ...found, more: Boolean(found.more) };
  }

  async plan({ longest }) {
    const found = await this.queue.plan(longest);
    return { is_later: found["look again at"] > found.now };
  }

  async beat({ worker, about }) {
    return Object.values(await this.queue.call("beat", { worker, about: about ? JSON.stringify(about) : "" }))[0];
  }
}
