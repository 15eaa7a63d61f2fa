import { stored } from "./stored";

export type ThemeChoice = "system" | "light" | "dark";
export type TextSize = "small" | "medium" | "large";

const oneOf =
  (...values: string[]) =>
  (value: unknown) =>
    values.includes(value as string);
const isBoolean = (value: unknown) => typeof value === "boolean";
const isString = (value: unknown) => typeof value === "string";
const isObject = (value: unknown) => typeof value === "object" && value !== null && !Array.isArray(value);

export const themeChoice = stored<ThemeChoice>("theme", "system", oneOf("system", "light", "dark"));
export const textSize = stored<TextSize>("text-size", "medium", oneOf("small", "medium", "large"));
export const sidebarOpen = stored("sidebar", true, isBoolean);

/** Whether a model gives new chats a title, in idle time. */
export const titlesByModel = stored("titles", false, isBoolean);
/** Whether Enter sends a message; otherwise Ctrl+Enter does. */
export const enterSends = stored("enter-sends", true, isBoolean);
export const defaultModel = stored("model", "", isString);
/** The settings of new chats, as a chat keeps them. */
export const defaultSettings = stored<Record<string, unknown>>("defaults", {}, isObject);
