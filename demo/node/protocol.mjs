// The protocol: builds the words of a call, and reads a reply, by the grammar in protocol.json, which `timeoutq protocol`
// writes. Nothing here knows a verb: a new argument, section or reply of the scripts needs no change in this file. No I/O
// but for reading the document. client.mjs calls it.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const FORMS = {
  number: /^\d{1,16}$/, ms: /^\d{1,16}$/, "number or -1": /^(\d{1,16}|-1)$/, "ms or -1": /^(\d{1,16}|-1)$/,
  "ms or inf": /^(\d{1,16}|inf)$/, "ms or +inf": /^(\d{1,16}|\+inf)$/, "ms or +ms": /^\+?\d{1,16}$/, "0 or 1": /^[01]$/,
  decimal: /^[0-9.e+-]+$/, "decimal or -": /^([0-9.e+-]+|-)$/, letters: /^[A-Za-z]*$/, letter: /^[A-Za-z]$/,
};

/** A call cannot be built: mend the arguments. Nothing was sent. */
export class InvalidInput extends Error {
  name = "InvalidInput";
}

/** A script replied what the document does not say: write protocol.json again. */
export class BadReply extends Error {
  name = "BadReply";
}

/** Give the bytes of a word: a Buffer as it is, a string in UTF-8, a whole number, a boolean as 0 or 1. */
export function bytes(word, name = "a word") {
  if (Buffer.isBuffer(word)) return word;
  if (word instanceof Uint8Array) return Buffer.from(word);
  if (typeof word === "boolean") return Buffer.from(word ? "1" : "0");
  if (typeof word === "number" || typeof word === "bigint") {
    if (typeof word === "number" && !Number.isSafeInteger(word)) throw new InvalidInput(`${name} must be a whole number, not ${word}`);
    return Buffer.from(String(word));
  }
  if (typeof word !== "string") throw new InvalidInput(`${name} must be a string or a Buffer, not ${word === null ? "null" : typeof word}`);
  const found = Buffer.from(word, "utf8");
  if (found.toString("utf8") !== word) throw new InvalidInput(`${name} holds a lone surrogate, which UTF-8 cannot write`);
  return found;
}

/** SHA-256, cut to 24 hex digits. */
export function digest(...words) {
  return createHash("sha256").update(join(words.map((word) => bytes(word)))).digest("hex").slice(0, 24);
}

function join(buffers) {
  const nul = Buffer.alloc(1);
  return Buffer.concat(buffers.flatMap((one, at) => (at ? [nul, one] : [one])));
}

export class Protocol {
  /** Take the parsed document; raises where its form is another one than this file knows. */
  constructor(document) {
    if (document.protocol !== 2) throw new InvalidInput(`protocol.json has form ${document.protocol}, and this client reads form 2`);
    this.limits = document.limits;
    this.states = document.states;
    this.schema = document.schema;
    this.verbs = document.verbs;
    this.library = document.library;
    this.rules = document.rules;
  }

  static read(path) {
    try {
      return new Protocol(JSON.parse(readFileSync(path, "utf8")));
    } catch (error) {
      if (error.code === "ENOENT") throw new InvalidInput(`there is no ${path}: write it with "timeoutq protocol -o protocol.json"`);
      throw error;
    }
  }

  verb(name) {
    const verb = this.verbs[name];
    if (!verb) throw new InvalidInput(`the protocol has no verb ${name}: ${Object.keys(this.verbs).join(", ")}`);
    return verb;
  }

  /** Give the first words of a call: the command, and the function of the verb. A full server refuses links and results. */
  head(name, { put, results, full } = {}) {
    const { function: called, reads_only: readsOnly, if_room: mayGrow } = this.verb(name);
    return [readsOnly ? "FCALL_RO" : "FCALL", mayGrow && (put || results) && !full ? `${called}_if_room` : called];
  }

  /**
   * Build the arguments of a call: `values` has the arguments by their names, and an array for each that stands again
   * and again; `given` has the sections by their names. Gives the words, and the place of each single argument.
   */
  build(name, values, given = {}) {
    const call = new Building(this.verb(name), name, values, this.limits);
    call.parts(call.verb.arguments, []);
    for (const option of Object.keys(given)) {
      if (!(option in call.verb.sections)) throw new InvalidInput(`${name} has no section ${option}`);
      if (given[option] !== undefined) call.section(option, given[option]);
    }
    for (const value of Object.keys(values)) {
      if (!call.used.has(value)) throw new InvalidInput(`${name} has no argument ${value}`);
    }
    const kind = call.verb.arguments[0].type ?? "";
    if (kind.startsWith("digest ")) call.words[0] = Buffer.from(kind.at(-1) + digest(...call.leases));
    return { words: call.words, places: call.places };
  }

  /** Read a reply: gives its parts by their names, arrays where they stand again and again, null for a reply of nil. */
  read(name, reply) {
    const said = [];
    for (const form of this.verb(name).replies) {
      if (form.form === null) {
        if (reply === null) return null;
        continue;
      }
      try {
        const found = {};
        readPart(form.form, reply, found);
        const unknown = [...(found.letters ?? found.letter ?? "")].find((letter) => !(letter in form.letters));
        if (unknown) throw new BadReply(`the letter ${unknown} means nothing`);
        return found;
      } catch (error) {
        if (!(error instanceof BadReply)) throw error;
        said.push(error.message);
      }
    }
    throw new BadReply(`${name} replied what protocol.json does not say: ${said.join("; or ")}`);
  }
}

class Building {
  constructor(verb, name, values, limits) {
    Object.assign(this, { verb, name, values, limits, words: [], places: {}, used: new Set(), leases: [] });
  }

  parts(parts, path) {
    for (const part of parts) {
      if (part.runs) this.runs();
      else if (part.many) this.many(part, path);
      else if (!part.sections) this.value(part, path, this.counted(part.name, parts, path));
    }
  }

  // the caller does not give how often something stands: what stands there says it
  counted(name, siblings, path) {
    const found = siblings.filter((part) => part.times === name || (part.runs && name === "count"));
    const [count, ...others] = found.map((part) => this.rows(part.runs ? "id" : leaf(part.many), path).length);
    if (others.some((other) => other !== count)) throw new InvalidInput(`${this.name}: ${name} is ${count} for one array and ${others} for another`);
    return count;
  }

  rows(name, path) {
    const found = path.reduce((rows, at) => rows?.[at], this.values[name]);
    if (!Array.isArray(found)) throw new InvalidInput(`${this.name} needs an array ${name}`);
    this.used.add(name);
    return found;
  }

  value({ name, type }, path, count) {
    let word = count;
    if (word === undefined) {
      this.used.add(name);
      word = path.reduce((found, at) => found?.[at], this.values[name]);
      if (word === undefined && type.startsWith("digest ")) word = "";
      if (word === undefined) throw new InvalidInput(`${this.name} needs ${name} (${type})`);
    }
    if (path.length === 0) this.places[name] = this.words.length;
    this.words.push(this.checked(word, name, type));
  }

  checked(word, name, type) {
    const found = bytes(word, name);
    if (type === "id" && (found.length < 1 || found.length > this.limits.id_bytes)) {
      throw new InvalidInput(`an id has 1 to ${this.limits.id_bytes} bytes, not ${found.length}`);
    }
    const form = FORMS[type];
    const fits = form ? form.test(found.toString("latin1")) : type.includes("|") ? type.split("|").includes(found.toString()) : true;
    if (!fits || (found.length === 0 && (type === "nonce" || type === "token"))) {
      throw new InvalidInput(`${this.name}: ${name} must be ${type}, not ${JSON.stringify(found.toString().slice(0, 60))}`);
    }
    return found;
  }

  many(part, path) {
    const rows = this.rows(leaf(part.many), path);
    for (const { name } of part.many) {
      if (name in this.values && this.rows(name, path).length !== rows.length) throw new InvalidInput(`${this.name}: the arrays ${leaf(part.many)} and ${name} differ in length`);
    }
    if (part.many.some((one) => one.type === "id") && rows.length > this.limits.ids_in_a_call) {
      throw new InvalidInput(`${this.name}: ${rows.length} ids are more than ${this.limits.ids_in_a_call}`);
    }
    rows.forEach((_, at) => this.parts(part.many, [...path, at]));
  }

  // leases: runs of those that have the same token
  runs() {
    const start = this.words.length - 1;
    const [tokens, ids] = ["token", "id"].map((name) => this.rows(name, []).map((word) => bytes(word, name)));
    if (ids.length > this.limits.ids_in_a_call) throw new InvalidInput(`${this.name}: ${ids.length} leases are more than ${this.limits.ids_in_a_call}`);
    for (let from = 0, at = 1; at <= ids.length; at++) {
      if (at < ids.length && tokens[at].equals(tokens[from])) continue;
      this.words.push(this.checked(tokens[from], "token", "token"), bytes(at - from));
      for (; from < at; from++) this.words.push(this.checked(ids[from], "id", "id"));
    }
    this.leases = this.words.slice(start);
  }

  // pairs are arrays [position, word], the position from 1 on
  section(name, given) {
    const { kind } = this.verb.sections[name];
    if (kind === "0") {
      if (given) this.words.push(bytes(name), bytes(0));
      return;
    }
    const words = (kind === "1" || kind === "ms" ? [given] : kind === "n" ? given : [...given].flat()).map((word) => bytes(word, name));
    if (kind !== "n" && words.length === 0) return; // no pairs at all
    const numbers = kind === "ms" ? words : kind === "numbers" ? words.filter((_, at) => at % 2) : [];
    if (numbers.some((word) => !/^\d{1,15}$/.test(word.toString("latin1")))) throw new InvalidInput(`${this.name}: section ${name} takes whole numbers`);
    this.words.push(bytes(name), bytes(words.length), ...words);
  }
}

// the name of the first values that a caller gives for what stands again and again
function leaf(parts) {
  for (const part of parts) {
    if (part.many) return leaf(part.many);
    if (part.name && !parts.some((one) => one.times === part.name)) return part.name;
  }
}

function readPart(part, reply, found) {
  if (part.list) {
    if (reply === null && part.nil) return;
    if (!Array.isArray(reply)) throw new BadReply(`${String(reply).slice(0, 60)} is no list`);
    const rest = readSome(part.list, reply, found);
    if (rest.length) throw new BadReply(`${String(rest[0]).slice(0, 60)} is one too many`);
    return;
  }
  found[part.name] = readValue(part, reply);
}

function readSome(parts, reply, found) {
  let rest = reply;
  parts.forEach((part, place) => {
    if (part.maybe) {
      if (rest.length) rest = readSome(part.maybe, rest, found);
    } else if (part.many) {
      const behind = parts.slice(place + 1).filter((one) => one.name || one.list).length;
      for (const one of names(part.many)) found[one] ??= [];
      while (rest.length > behind) {
        const row = {};
        rest = readSome(part.many, rest, row);
        for (const [name, value] of Object.entries(row)) found[name].push(value);
      }
    } else {
      if (!rest.length) throw new BadReply(`${part.name ?? "a list"} is missing`);
      readPart(part, rest[0], found);
      rest = rest.slice(1);
    }
  });
  return rest;
}

function names(parts) {
  return parts.flatMap((part) => (part.name ? [part.name] : names(part.many ?? part.list ?? part.maybe ?? [])));
}

function readValue({ name, type, nil }, word) {
  if (type === "any") return word;
  if (word === null) {
    if (nil) return null;
    throw new BadReply(`${name} is nil`);
  }
  if (typeof word !== "number" && !Buffer.isBuffer(word)) throw new BadReply(`${name} must be ${type}, not a list`);
  const text = typeof word === "number" ? String(word) : word.toString("latin1");
  if (FORMS[type] && !FORMS[type].test(text)) throw new BadReply(`${name} must be ${type}, not ${text.slice(0, 60)}`);
  if (type === "letters" || type === "letter") return text;
  if (/^(number|ms|0 or 1)/.test(type)) return text === "inf" || text === "+inf" ? Infinity : Number(text);
  return word;
}
