// A worker: claims tasks, runs a handler on each, and acks, fails or releases them. It does most of what Python's worker
// does: its leases are kept alive by one call for all of them, ends of leases gather and go in one call, it takes back leases
// that ran out and makes due tasks ready, it tells the queue that it lives, and SIGTERM lets it finish what runs and give the
// rest back. It puts no ticks of schedules: for these, let a worker or `timeoutq cleaner` in Python run beside it.
//
//   node worker.mjs QUEUE HANDLER.mjs [--url URL] [--concurrency N] [--timeout SECONDS] ...
//
// --help prints all options. It ends with 2 when its words or its handler cannot be used, and with 1 when the queue cannot.
//
// HANDLER.mjs exports `default async function (lease, { signal })`. What it returns or throws ends the lease: nothing acks
// it, and so does Ack; an error is tried again, and Retry, GiveUp and Release say what becomes of the task.

import { hostname } from "node:os";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

import { Client, digest } from "./client.mjs";

/** The task is done: `put` what it found, keep a `result`, or have it ready again after `againIn` seconds. */
export class Ack {
  constructor(options = {}) {
    this.options = options;
  }
}

/** The attempt failed: try again after `after` seconds. This counts as an attempt, and the last one still gives up. */
export class Retry extends Error {
  name = "Retry";
  constructor(message, after = 0) {
    super(message);
    this.after = after;
  }
}

/** The task failed, and is not tried again. */
export class GiveUp extends Error {
  name = "GiveUp";
}

/** The task is given back, after `delay` seconds; this is no failure, but after 100 releases the task goes to failed. */
export class Release extends Error {
  name = "Release";
  constructor({ delay = 0, block = 0 } = {}) {
    super("released");
    Object.assign(this, { delay, block });
  }
}

/** Escape what a terminal or a log would obey or hide: control characters, marks of direction, lone surrogates. */
export function safe(text) {
  const number = (one) => "\\u{" + one.codePointAt(0).toString(16) + "}";
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, number);
}

const short = (text, most) => safe(text.length > most ? `${text.slice(0, most)}…` : text);

const sleep = (ms, signal) =>
  new Promise((done) => {
    if (signal?.aborted) return done();
    const over = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", over);
      done();
    };
    const timer = setTimeout(over, ms);
    signal?.addEventListener("abort", over);
  });

/** The number of the bucket of a histogram in which a duration falls: as timeoutq/words/durations.py says. */
export function bucket(seconds) {
  if (seconds <= 2 ** -13) return -89;
  const value = Math.min(seconds, 86400);
  let exponent = Math.floor(Math.log2(value)) + 1;
  if (2 ** (exponent - 1) > value) exponent--;
  return 8 * exponent + Math.floor((16 * value) / 2 ** exponent);
}

export class Worker {
  #held = new Map(); // id in latin-1 -> {lease, stop, ending, lost, cancelled}
  #ends = { ack: [], fail: [], release: [] };
  #flushing = null;
  #stopping = new AbortController(); // claim nothing any more
  #over = new AbortController(); // end what runs beside
  #wake = () => {};
  #counts = { acked: 0, failed: 0 };
  #spans = { number: 0, counts: new Map(), sent: null };

  /**
   * `grace`: how long handlers may go on after stop(), seconds. `maxAttempts`: attempts in all before the task is given up.
   * `maxReleases`: the release by its handler at which a task goes to failed. `log` gets lines without control characters.
   */
  constructor(client, handler, { concurrency = 10, maxRuntime, maxAttempts = 5, maxReleases = 100, grace = 25, log = (line) => console.error(line) } = {}) {
    const say = (line) => log(safe(line));
    Object.assign(this, { client, handler, concurrency, maxRuntime, maxAttempts, maxReleases, grace, log: say, started: Date.now() / 1000 });
  }

  /** Work until stop() is called. */
  async run() {
    this.log(`works on queue ${this.client.name}: concurrency ${this.concurrency}, timeout ${this.client.timeoutMs / 1000} s`);
    const beside = [this.#keepAlive(), this.#tellOfLife(), this.#tidy()];
    try {
      await this.#pump();
    } finally {
      await this.#drain();
      this.#over.abort();
      await Promise.allSettled(beside);
      await this.#leave().catch(() => {});
      await this.client.close();
    }
  }

  /** Claim nothing any more, let handlers end, give back what does not end in time. */
  stop() {
    this.#stopping.abort();
    this.#wake();
  }

  get #free() {
    return this.concurrency - this.#held.size;
  }

  async #pump() {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      if (this.#free <= 0) {
        await new Promise((done) => (this.#wake = done));
        continue;
      }
      try {
        const leases = await this.client.claim(this.#free, { wait: 5, maxRuntime: this.maxRuntime, signal });
        for (const lease of leases) await this.#begin(lease);
      } catch (error) {
        this.log(`cannot claim: ${error.message}`);
        await sleep(500 + Math.random() * 500, signal);
      }
    }
  }

  async #begin(lease) {
    const id = lease.id.toString("latin1");
    const stop = new AbortController();
    const entry = { lease, stop, ending: false, lost: false, cancelled: false };
    this.#held.set(id, entry);
    // a task that lost two leases may kill this process: it runs alone, so that no other lease can be lost with it
    while (lease.crashes >= 2 && this.#held.size > 1 && !this.#stopping.signal.aborted) await new Promise((done) => (this.#wake = done));
    const ended = this.#run(id, entry);
    if (lease.crashes >= 2) await ended;
  }

  async #run(id, entry) {
    const { lease, stop } = entry;
    if (entry.lost) return;
    if (this.#stopping.signal.aborted || entry.cancelled) return this.#end(id, entry, "release", { delay: 0 });
    const began = performance.now();
    let given;
    try {
      given = await this.handler(lease, { signal: stop.signal, client: this.client });
    } catch (error) {
      given = error instanceof Error ? error : new Error(String(error));
    }
    if (entry.lost) return; // somebody else has the task
    const number = bucket((performance.now() - began) / 1000);
    this.#spans.counts.set(number, (this.#spans.counts.get(number) ?? 0) + 1);
    // a release by the worker is not counted, one by the handler is
    if (entry.cancelled) return this.#end(id, entry, "release", { delay: 0 });
    if (given instanceof Release) return this.#end(id, entry, "release", { delay: given.delay, block: given.block, most: this.maxReleases });
    if (given instanceof Error) return this.#end(id, entry, "fail", this.#failure(lease, given));
    return this.#end(id, entry, "ack", given instanceof Ack ? given.options : {});
  }

  #failure(lease, error) {
    const decides = error instanceof Retry || error instanceof GiveUp;
    const end = { error: decides ? error.message || error.name : error, trace: decides ? undefined : String(error.stack ?? "").slice(-16384) };
    if (!(error instanceof GiveUp) && lease.attempt < this.maxAttempts) {
      end.retryIn = error instanceof Retry ? error.after : Math.min(300, 2 ** (lease.attempt - 1) + Math.random());
    }
    const then = end.retryIn === undefined ? "given up" : `again in ${Math.ceil(end.retryIn)} s`;
    const said = short(decides ? end.error : `${error.name}: ${error.message}`, 500);
    this.log(`task ${short(String(lease.task), 200)} failed on attempt ${lease.attempt}, ${then}: ${said}`);
    return end;
  }

  #end(id, entry, how, options) {
    entry.ending = true;
    this.#ends[how].push({ id, entry, lease: entry.lease, options });
    void this.#flush();
  }

  // the ends of leases gather while a call is under way, and go together in the next one
  #flush() {
    this.#flushing ??= this.#send().finally(() => {
      this.#flushing = null;
      if (Object.values(this.#ends).some((row) => row.length)) void this.#flush();
    });
    return this.#flushing;
  }

  async #send() {
    await null; // so that all ends of this moment go together
    for (const how of ["ack", "fail", "release"]) {
      const row = this.#ends[how].splice(0);
      const alike = new Map();
      for (const end of row) {
        const alone = how === "ack" && Object.keys(end.options).length > 0;
        const group = how === "fail" ? "all" : alone ? end : JSON.stringify([end.options.delay ?? 0, end.options.block ?? 0, end.options.most ?? 0]);
        alike.set(group, [...(alike.get(group) ?? []), end]);
      }
      await Promise.all([...alike.values()].map((ends) => this.#sendAlike(how, ends)));
    }
  }

  async #sendAlike(how, ends) {
    const leases = ends.map((end) => end.lease);
    try {
      const letters =
        how === "fail" ? await this.client.fail(leases, ends.map((end) => end.options)) : await this.client[how](leases, ends[0].options);
      [...letters].forEach((letter, at) => {
        if (letter === "L") this.log(`task ${short(String(leases[at].task), 200)}: the lease was lost before its ${how}`);
        else if (how === "ack") this.#counts.acked++;
        else if (how === "fail") this.#counts.failed++;
      });
    } catch (error) {
      this.log(`cannot ${how} ${leases.length} tasks, which come back when their leases run out: ${error.message}`);
    }
    for (const { id, entry } of ends) if (this.#held.get(id) === entry) this.#held.delete(id);
    this.#wake();
  }

  // one call for all leases, each third of their length
  async #keepAlive() {
    const { signal } = this.#over;
    while (!signal.aborted) {
      await sleep(this.client.timeoutMs / 3, signal);
      const entries = [...this.#held.entries()];
      if (signal.aborted || !entries.length) continue;
      try {
        const letters = await this.client.extend(entries.map(([, entry]) => entry.lease));
        entries.forEach(([id, entry], at) => this.#judge(id, entry, letters[at]));
      } catch (error) {
        this.log(`cannot extend ${entries.length} leases: ${error.message}`);
      }
    }
  }

  #judge(id, entry, letter) {
    if (letter === "O" || this.#held.get(id) !== entry) return;
    if (letter === "c") {
      entry.cancelled = true;
    } else if (!entry.ending) {
      // lost: what the handler brings counts no more. max_runtime is over: the handler is to stop, and its end is still sent
      entry.lost = letter === "L";
      if (entry.lost) {
        this.#held.delete(id);
        this.log(`task ${short(String(entry.lease.task), 200)}: the lease was lost`);
        this.#wake();
      }
    }
    entry.stop.abort(new Error(letter === "c" ? "the task was cancelled" : letter === "X" ? "max_runtime is over" : "the lease was lost"));
  }

  async #tellOfLife() {
    const { signal } = this.#over;
    while (!signal.aborted) {
      const about = {
        host: hostname(), pid: process.pid, concurrency: this.concurrency, held: this.#held.size, ...this.#counts, started: this.started,
      };
      await this.#beat(JSON.stringify(about)).catch((error) => this.log(`cannot give a sign of life: ${error.message}`));
      await sleep(10_000, signal);
    }
  }

  // leave the queue; if a report of durations has not arrived yet, the last ones go in a report of their own
  async #leave() {
    do await this.#beat("");
    while (this.#spans.counts.size);
  }

  // a sign of life, with the durations of the handlers that have ended since the last one; without `about`, the worker is gone
  async #beat(about) {
    const spans = this.#spans;
    if (!spans.sent && spans.counts.size) [spans.sent, spans.counts, spans.number] = [spans.counts, new Map(), spans.number + 1];
    const values = { worker: this.client.worker, about };
    // the same report is counted once, also when it goes again in another call
    if (spans.sent) values["call id"] = `b${digest(this.client.worker, spans.number)}`;
    await this.client.call("beat", values, spans.sent ? { durations: [...spans.sent] } : {});
    spans.sent = null;
  }

  // every worker is a cleaner: leases that ran out come back though other workers have died
  async #tidy() {
    const { signal } = this.#over;
    let pruned = 0;
    while (!signal.aborted) {
      let pause = 500;
      try {
        await this.client.clean();
        if (Date.now() - pruned > 60_000) {
          await this.client.prune();
          pruned = Date.now();
        }
        const plan = await this.client.plan(1);
        pause = Math.max(20, plan["look again at"] - plan.now);
      } catch (error) {
        this.log(`cannot tidy the queue: ${error.message}`);
      }
      await sleep(pause, signal);
    }
  }

  async #drain() {
    const until = Date.now() + this.grace * 1000;
    while (this.#held.size && Date.now() < until) {
      await Promise.race([new Promise((done) => (this.#wake = done)), sleep(Math.min(1000, until - Date.now()))]);
    }
    await this.#flush();
    const left = [...this.#held.values()].filter((entry) => !entry.ending);
    for (const entry of left) {
      entry.lost = true; // its handler goes on, but it has nothing to say any more
      entry.stop.abort(new Error("the worker stops"));
    }
    if (left.length) await this.client.release(left.map((entry) => entry.lease)).catch((error) => this.log(`cannot release: ${error.message}`));
  }
}

const USAGE = "usage: node worker.mjs QUEUE HANDLER.mjs [OPTION]...; --help lists the options";

const HELP = `usage: node worker.mjs QUEUE HANDLER.mjs [OPTION]...

  --url URL            the Redis server; else TIMEOUTQ_URL, else redis://localhost:6379/0
  --protocol FILE      what "timeoutq protocol -o FILE" wrote; else TIMEOUTQ_PROTOCOL, else protocol.json beside client.mjs
  --library NAME       redis (the default) or ioredis
  --concurrency N      handlers that run at once, 10 by default
  --timeout S          the length of leases, seconds, 30 by default: a lease is extended while its handler runs, and if the
                       worker dies, the task is ready again after so long
  --max-runtime S      the longest run of a handler, seconds, unlimited by default: then its signal is aborted, and the
                       attempt fails
  --max-attempts N     attempts in all before a failing task is given up, 5 by default
  --grace S            how long handlers may go on after SIGTERM, seconds, 25 by default
  --quiet              print no line at the start and none for failed attempts, lost leases or errors of the server
`;

const NUMBERS = ["concurrency", "timeout", "max-runtime", "grace", "max-attempts"];

function misused(message) {
  console.error(message);
  process.exit(2);
}

function words() {
  const options = {
    help: { type: "boolean", short: "h" }, url: { type: "string" }, protocol: { type: "string" }, library: { type: "string" },
    concurrency: { type: "string", default: "10" },
    timeout: { type: "string", default: "30" }, "max-runtime": { type: "string" }, grace: { type: "string", default: "25" }, "max-attempts": { type: "string", default: "5" },
    quiet: { type: "boolean", default: false },
  };
  try {
    return parseArgs({ allowPositionals: true, options });
  } catch (error) {
    return misused(`${error.message}\n${USAGE}`);
  }
}

// open a queue; wait for a server that is away
async function met(queue, options, log) {
  for (let said = false; ; said = true) {
    try {
      return await Client.open(queue, options);
    } catch (error) {
      if (error.name !== "Unavailable") throw error;
      if (!said) log(`waits for the server: ${error.message}`);
      await sleep(1000);
    }
  }
}

async function main() {
  const { values, positionals } = words();
  if (values.help) {
    process.stdout.write(HELP);
    return;
  }
  const [queue, file] = positionals;
  if (positionals.length !== 2) misused(USAGE);
  for (const name of NUMBERS) {
    if (values[name] !== undefined && !(Number(values[name]) >= 0)) misused(`--${name} is a number, not ${values[name]}\n${USAGE}`);
  }
  const { default: handler } = await import(pathToFileURL(resolve(file))).catch((error) => misused(`the handler ${file}: ${error.message}`));
  if (typeof handler !== "function") misused(`${file} has no default export that is a function`);
  const { url, protocol, library } = values;
  const log = values.quiet ? () => {} : (line) => console.error(safe(line));
  const client = await met(queue, { ...(url && { url }), protocol, library, timeout: Number(values.timeout) }, log);
  const runtime = values["max-runtime"];
  const worker = new Worker(client, handler, {
    concurrency: Number(values.concurrency), grace: Number(values.grace), maxAttempts: Number(values["max-attempts"]),
    ...(runtime && { maxRuntime: Number(runtime) }), ...(values.quiet && { log }),
  });
  for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => worker.stop());
  await worker.run();
  process.exit(0); // handlers that do not end must not keep the process
}

if (process.argv[1] && import.meta.url === pathToFileURL(resolve(process.argv[1])).href) {
  main().catch((error) => {
    console.error(`${error.name}: ${error.message}`);
    process.exit(1);
  });
}
