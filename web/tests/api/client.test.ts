import { describe, expect, test, vi } from "vitest";
import { ApiError, Client, NetworkError } from "../../src/api/client";

interface Sent {
  url: string;
  init: RequestInit & { headers: Headers };
}

/** Return a client whose server answers with `reply`, and what it sends. */
function clientOf(
  reply: () => Response | Error,
  base = "https://host/below/",
): { client: Client; sent: Sent[] } {
  const sent: Sent[] = [];
  const send = async (input: RequestInfo | URL, init?: RequestInit) => {
    sent.push({ url: String(input), init: init as Sent["init"] });
    const answer = reply();
    if (answer instanceof Error) throw answer;
    return answer;
  };
  return { client: new Client(() => base, send as typeof fetch), sent };
}

const json = (value: unknown, status = 200, headers: Record<string, string> = {}) =>
  new Response(JSON.stringify(value), { status, headers });

describe("Client", () => {
  test("asks below the page's own address, with queries that are not empty", async () => {
    const { client, sent } = clientOf(() => json({}));
    await client.json("api/puna/chats", {
      query: { query: "a&b", folder: "", cursor: undefined, limit: 50 },
    });
    expect(sent[0]?.url).toBe("https://host/below/api/puna/chats?query=a%26b&limit=50");
  });

  test("sends the key in a header and never in the address", async () => {
    const { client, sent } = clientOf(() => json({}));
    client.useKey("puna-secret");
    await client.json("api/puna/me");
    expect(sent[0]?.init.headers.get("Authorization")).toBe("Bearer puna-secret");
    expect(sent[0]?.url).not.toContain("secret");
  });

  test("follows no redirect, which might lead the key elsewhere", async () => {
    const { client, sent } = clientOf(() => json({}));
    await client.run("api/version");
    expect(sent[0]?.init.redirect).toBe("error");
  });

  test("posts JSON", async () => {
    const { client, sent } = clientOf(() => json({}));
    await client.run("api/copy", { json: { source: "a" } });
    expect(sent[0]?.init).toMatchObject({ method: "POST", body: '{"source":"a"}' });
  });

  test("raises the server's words", async () => {
    const { client } = clientOf(() => json({ error: "model not found" }, 404));
    const error = await client.json("api/show", { json: {} }).catch((caught: ApiError) => caught);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ message: "model not found", status: 404, isMissing: true });
  });

  test("says the status where a proxy answers with a page", async () => {
    const { client } = clientOf(() => new Response("<html>", { status: 502, statusText: "Bad Gateway" }));
    const error = await client.json("x").catch((caught: ApiError) => caught);
    expect(error).toMatchObject({ message: "The server answered 502 Bad Gateway" });
    expect(client.isTemporary(error)).toBe(true);
  });

  test("reads how long to wait", async () => {
    const { client } = clientOf(() => json({ error: "busy" }, 429, { "Retry-After": "3" }));
    await expect(client.json("x")).rejects.toMatchObject({ retryAfter: 3 });
  });

  test("tells of a key that is refused, unless another one is in use by then", async () => {
    const { client } = clientOf(() => json({ error: "no" }, 401));
    const onUnauthorized = vi.fn();
    client.watch({ onUnauthorized, onReachable: () => {} });
    await client.json("x").catch(() => {});
    expect(onUnauthorized).toHaveBeenCalledTimes(1);
    const late = client.json("x").catch(() => {});
    client.useKey("puna-new");
    await late;
    expect(onUnauthorized).toHaveBeenCalledTimes(1);
  });

  test("tells whether the server is there", async () => {
    let away = true;
    const { client } = clientOf(() => (away ? new TypeError("fetch failed") : json({})));
    const seen: boolean[] = [];
    client.watch({ onUnauthorized: () => {}, onReachable: (now) => seen.push(now) });
    await expect(client.json("x")).rejects.toBeInstanceOf(NetworkError);
    away = false;
    await client.json("x");
    expect(seen).toEqual([false, true]);
  });

  test("yields lines of JSON until one is an error", async () => {
    const text = '{"status": "pulling"}\n\n{"status": "done"}\n{"error": "disk full"}\n{"status": "never"}\n';
    const { client } = clientOf(() => new Response(text));
    const found: unknown[] = [];
    const reading = async () => {
      for await (const each of client.lines<{ status: string }>("api/pull", { json: {} }))
        found.push(each.status);
    };
    await expect(reading()).rejects.toThrow("disk full");
    expect(found).toEqual(["pulling", "done"]);
  });

  test("takes half a line for a broken connection", async () => {
    const { client } = clientOf(() => new Response('{"status": "pulling"}\n{"stat'));
    const reading = async () => {
      for await (const _ of client.lines("api/pull", { json: {} }));
    };
    await expect(reading()).rejects.toBeInstanceOf(NetworkError);
  });
});
