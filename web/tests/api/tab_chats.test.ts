import { describe, expect, test } from "vitest";
import { marked, TabChats } from "../../src/api/tab_chats";

function store(): TabChats {
  let time = 1000;
  let id = 0;
  return new TabChats(
    () => ++time,
    () => `id${++id}`,
  );
}

async function question(chats: TabChats, content: string): Promise<string> {
  const { id } = await chats.create({});
  await chats.addMessage(id, { parent: null, role: "user", content });
  return id;
}

describe("TabChats", () => {
  test("names a chat after its first question until somebody does", async () => {
    const chats = store();
    const id = await question(chats, "  Why is the sky blue?\nAnd the sea?");
    expect((await chats.get(id)).title).toBe("Why is the sky blue?");
    await chats.change(id, { title: "Colours" });
    await chats.addMessage(id, { parent: null, role: "user", content: "Another" });
    expect(await chats.get(id)).toMatchObject({ title: "Colours", titled: true });
    expect(await chats.change(id, { title: "" })).toMatchObject({
      title: "Why is the sky blue?",
      titled: false,
    });
  });

  test("lists pinned chats first, then the last used", async () => {
    const chats = store();
    const [first, second, third] = [
      await question(chats, "1"),
      await question(chats, "2"),
      await question(chats, "3"),
    ];
    await chats.change(second!, { pinned: true });
    expect((await chats.list({})).chats.map(({ id }) => id)).toEqual([second, third, first]);
  });

  test("lists in pages", async () => {
    const chats = store();
    for (const text of ["a", "b", "c"]) await question(chats, text);
    const page = await chats.list({ limit: 2 });
    expect(page.chats.map(({ title }) => title)).toEqual(["c", "b"]);
    const next = await chats.list({ limit: 2, cursor: page.cursor! });
    expect(next.chats.map(({ title }) => title)).toEqual(["a"]);
    expect(next.cursor).toBeNull();
  });

  test("finds chats that have all words, in any case", async () => {
    const chats = store();
    await question(chats, "Llamas of the Puna");
    await question(chats, "Alpacas of the coast");
    const { chats: found } = await chats.list({ query: "PUNA llama" });
    expect(found).toHaveLength(1);
    expect(found[0]?.snippet).toEqual([
      { text: "Llama", hit: true },
      { text: "s of the ", hit: false },
      { text: "Puna", hit: true },
    ]);
  });

  test("filters by folder and tag, and counts them", async () => {
    const chats = store();
    const id = await question(chats, "x");
    await question(chats, "y");
    await chats.change(id, { folder: "Work", tags: ["b", "a"] });
    const page = await chats.list({ folder: "Work", tag: "a" });
    expect(page.chats).toHaveLength(1);
    expect(page.folders).toEqual([{ name: "Work", count: 1 }]);
    expect(page.tags.map(({ name }) => name)).toEqual(["a", "b"]);
  });

  test("brings a deleted chat back", async () => {
    const chats = store();
    const id = await question(chats, "x");
    await chats.delete(id);
    await expect(chats.get(id)).rejects.toThrow("no such chat");
    await chats.restore(id);
    expect((await chats.get(id)).messages).toHaveLength(1);
  });

  test("gives copies, which change nothing when they are changed", async () => {
    const chats = store();
    const id = await question(chats, "x");
    (await chats.get(id)).messages.length = 0;
    expect((await chats.get(id)).messages).toHaveLength(1);
  });

  test("follows an answer as it grows", async () => {
    const chats = store();
    const id = await question(chats, "x");
    const answer = await chats.addMessage(id, { parent: "id2", role: "assistant", content: "" });
    await chats.keepMessage(id, { ...answer, content: "Hel", model: "demo", state: "running" });
    await chats.keepMessage(id, { ...answer, content: "Hello", model: "demo" });
    const chat = await chats.get(id);
    expect(chat.messages.map(({ content }) => content)).toEqual(["x", "Hello"]);
    expect(chat).toMatchObject({ leaf: answer.id, model: "demo" });
  });

  test("imports what it exported", async () => {
    const chats = store();
    await question(chats, "kept");
    const file = await chats.exportAll();
    const others = store();
    expect(await others.import(file)).toEqual({ imported: 1, skipped: [] });
    const [head] = (await others.list({})).chats;
    expect((await others.get(head!.id)).messages[0]?.content).toBe("kept");
  });

  test.each(["not JSON", "[]", "null", '{"chats": []}'])("refuses to import %s", async (text) => {
    await expect(store().import(new Blob([text]))).rejects.toMatchObject({ status: 400 });
  });

  test("exports the branch that is shown as Markdown", async () => {
    const chats = store();
    const id = await question(chats, "Code?");
    await chats.addMessage(id, { parent: "id2", role: "assistant", content: "no", thinking: "one\ntwo" });
    const call = { id: "", name: "look", arguments: '{"at": "```"}' };
    await chats.addMessage(id, { parent: "id2", role: "assistant", content: "yes", calls: [call] });
    const text = await (await chats.exportChat(id, "markdown")).text();
    expect(text).toBe(
      '# Code?\n\n## You\n\nCode?\n\n## Assistant\n\nyes\n\n````json\nlook({"at": "```"})\n````\n',
    );
  });
});

test("a snippet shows the surroundings of the first word", () => {
  const text = `${"a ".repeat(60)}needle${" b".repeat(200)}`;
  const parts = marked(text, ["needle"]);
  expect(parts[0]).toEqual({ text: "…", hit: false });
  expect(parts.find(({ hit }) => hit)?.text).toBe("needle");
  expect(parts.at(-1)).toEqual({ text: "…", hit: false });
  expect(parts.map((part) => part.text).join("").length).toBeLessThan(200);
});
