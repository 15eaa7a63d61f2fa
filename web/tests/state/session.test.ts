// @vitest-environment jsdom
import { beforeEach, describe, expect, test, vi } from "vitest";

describe("the session", () => {
  const me = { version: "1", keys: true, name: "anna", scopes: ["generate", "read"], history: true };
  const answer = (value: unknown, status = 200) => new Response(JSON.stringify(value), { status });

  beforeEach(() => {
    localStorage.clear();
    sessionStorage.clear();
    vi.resetModules();
    vi.unstubAllGlobals();
  });

  /** Have the server know one key. */
  function server(key: string): string[] {
    const asked: string[] = [];
    const send = async (url: string, init: { headers: Headers }) => {
      asked.push(url);
      const given = init.headers.get("Authorization");
      return given === `Bearer ${key}` ? answer(me) : answer({ error: "no such key" }, 401);
    };
    vi.stubGlobal("fetch", send);
    return asked;
  }

  test("asks for a key and keeps it for the tab only", async () => {
    const asked = server("puna-good");
    const session = await import("../../src/state/session");
    await session.startSession();
    expect(session.needsKey.value).toBe(true);
    await expect(session.signIn("puna-bad", true)).rejects.toThrow("no such key");
    expect(localStorage.length + sessionStorage.length).toBe(0);
    await session.signIn("puna-good", false);
    expect(session.needsKey.value).toBe(false);
    expect([session.can("read"), session.can("manage")]).toEqual([true, false]);
    expect(sessionStorage.getItem("puna.key")).toBe("puna-good");
    expect(localStorage.length).toBe(0);
    expect(asked.join()).not.toContain("puna-good");
  });

  test("knows the key that was to be remembered on the next visit", async () => {
    server("puna-good");
    const session = await import("../../src/state/session");
    await session.signIn("puna-good", true);
    sessionStorage.clear();
    vi.resetModules();
    const later = await import("../../src/state/session");
    await later.startSession();
    expect(later.me.value?.name).toBe("anna");
  });

  test("forgets a remembered key when it is used without remembering", async () => {
    server("puna-good");
    localStorage.setItem("puna.key", "puna-old");
    const session = await import("../../src/state/session");
    await session.signIn("puna-good", false);
    expect(localStorage.getItem("puna.key")).toBeNull();
  });
});
