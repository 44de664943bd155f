// Links to a server over npm's `redis`, or over `ioredis`: commands in, replies out, with Buffers for all texts. A link
// that gets no answer in time is thrown away, and the next command opens a new one: so a late reply can belong to nobody
// else. It sends nothing twice: what may be sent again is decided in client.mjs.

import { createRequire } from "node:module";

const require = createRequire(import.meta.url); // unlike `import`, it heeds NODE_PATH

/** The server could not be asked, or did not answer in time. `sent` says whether the command may have run. */
export class LinkBroken extends Error {
  name = "LinkBroken";
  constructor(message, sent) {
    super(message);
    this.sent = sent;
  }
}

/** The server answered with an error; `code` is its first word. */
export class ServerSaid extends Error {
  name = "ServerSaid";
  get code() {
    return this.message.split(" ", 1)[0];
  }
}

async function overRedis(url, connectMs) {
  const { createClient, RESP_TYPES } = require("redis");
  const client = createClient({ url, RESP: 2, disableOfflineQueue: true, socket: { reconnectStrategy: false, connectTimeout: connectMs } });
  client.on("error", () => {}); // each command that meets the error tells it
  await client.connect();
  const options = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } };
  return {
    send: (words) => client.sendCommand(words, options),
    isReply: (error) => /^(ErrorReply|SimpleError|BlobError)$/.test(error.constructor.name),
    end: () => client.destroy(),
  };
}

async function overIoredis(url, connectMs) {
  const { Redis } = require("ioredis");
  const client = new Redis(url, {
    lazyConnect: true, connectTimeout: connectMs, retryStrategy: () => null, enableOfflineQueue: false,
    maxRetriesPerRequest: 0, autoResendUnfulfilledCommands: false, enableReadyCheck: false,
  });
  client.on("error", () => {});
  await client.connect();
  return {
    send: ([command, ...words]) => client.callBuffer(String(command), ...words),
    isReply: (error) => error.name === "ReplyError",
    end: () => client.status === "end" || client.disconnect(),
  };
}

export const LIBRARIES = { redis: overRedis, ioredis: overIoredis };

export class Link {
  #opening = null;
  #closed = false;

  constructor(url, { library = "redis", connectMs = 2000 } = {}) {
    if (!(library in LIBRARIES)) throw new TypeError(`library must be one of ${Object.keys(LIBRARIES).join(", ")}, not ${library}`);
    try {
      require.resolve(library);
    } catch {
      throw new TypeError(`the library is not there: npm install ${library}`);
    }
    Object.assign(this, { url, library, connectMs });
  }

  /** Send one command and give its reply; raises `ServerSaid` or `LinkBroken`. */
  async send(words, withinMs) {
    if (this.#closed) throw new LinkBroken("the link is closed", false);
    const opening = (this.#opening ??= LIBRARIES[this.library](this.url, this.connectMs));
    const drop = (connection) => {
      if (this.#opening === opening) this.#opening = null;
      try {
        connection?.end();
      } catch {
        // it has ended already
      }
    };
    let connection;
    try {
      connection = await opening;
    } catch (error) {
      drop(undefined);
      throw new LinkBroken(`cannot connect: ${error.message || error.code || error}`, false);
    }
    let timer;
    try {
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new LinkBroken(`no answer within ${Math.round(withinMs)} ms`, true)), withinMs);
      });
      return await Promise.race([connection.send(words), late]);
    } catch (error) {
      if (connection.isReply(error)) throw new ServerSaid(error.message);
      drop(connection);
      throw error instanceof LinkBroken ? error : new LinkBroken(error.message || String(error), true);
    } finally {
      clearTimeout(timer);
    }
  }

  async close() {
    this.#closed = true;
    const opening = this.#opening;
    this.#opening = null;
    if (opening) (await opening.catch(() => null))?.end();
  }
}
