// Loaded when the first code is shown.
import highlighter from "highlight.js/lib/common";
import { type Line, linesOf } from "./highlighted";

const ALIASES: Record<string, string> = {
  jsonc: "json",
  json5: "json",
  svg: "xml",
  vue: "xml",
  svelte: "xml",
  tsx: "typescript",
  jsx: "javascript",
  zsh: "bash",
  fish: "bash",
  powershell: "bash",
  dockerfile: "bash",
  cuda: "cpp",
  metal: "cpp",
  toml: "ini",
};

/** Return the coloured lines of code, or null for a language that is not known. */
export function highlight(code: string, language: string): Line[] | null {
  const name = language.toLowerCase();
  const known = highlighter.getLanguage(name) === undefined ? ALIASES[name] : name;
  if (known === undefined || highlighter.getLanguage(known) === undefined) return null;
  return linesOf(highlighter.highlight(code, { language: known, ignoreIllegals: true }).value);
}
