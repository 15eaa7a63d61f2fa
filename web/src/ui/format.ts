// Numbers, sizes and times as people read them.

/** Return a size in decimal units: 1.2 GB. */
export function bytes(size: number): string {
  if (!Number.isFinite(size)) return "";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = size;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || Math.abs(value) >= 99.5 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Return a count with separators: 12,345. */
export const count = (value: number): string => whole.format(value);

/** Return a count in little room: 12.3k. */
export function short(value: number): string {
  if (Math.abs(value) < 1000) return String(Math.round(value));
  if (Math.abs(value) < 999_500) return `${(value / 1000).toFixed(Math.abs(value) < 99_950 ? 1 : 0)}k`;
  return `${(value / 1e6).toFixed(1)}M`;
}

export const plural = (value: number, one: string, many = `${one}s`): string =>
  `${count(value)} ${value === 1 ? one : many}`;

export const percent = (share: number): string => `${Math.round(share * 100)} %`;

/** Return a duration: 80 ms, 1.2 s, 3 min 20 s, 2 h 5 min. */
export function duration(seconds: number): string {
  if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 60) return join(minutes, "min", Math.round(seconds) % 60, "s");
  if (minutes < 24 * 60) return join(Math.floor(minutes / 60), "h", minutes % 60, "min");
  return join(Math.floor(minutes / 1440), "d", Math.floor((minutes % 1440) / 60), "h");
}

const join = (large: number, largeUnit: string, small: number, smallUnit: string) =>
  small === 0 ? `${large} ${largeUnit}` : `${large} ${largeUnit} ${small} ${smallUnit}`;

/** Return how long ago a time was: "just now", "5 min ago", "yesterday", "12 Mar", "12 Mar 2024". */
export function ago(time: number, now: number): string {
  const seconds = now - time;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  const then = new Date(time * 1000);
  const today = new Date(now * 1000);
  const days = Math.round((midnight(today) - midnight(then)) / 86_400_000);
  if (days === 0) return `${Math.floor(seconds / 3600)} h ago`;
  if (days === 1) return "yesterday";
  if (days < 7) return `${days} days ago`;
  const year = then.getFullYear() === today.getFullYear() ? undefined : "numeric";
  return then.toLocaleDateString("en-GB", { day: "numeric", month: "short", year });
}

/** Return the heading that a chat of this time stands under. */
export function period(time: number, now: number): string {
  const then = new Date(time * 1000);
  const today = new Date(now * 1000);
  const days = Math.round((midnight(today) - midnight(then)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "Last 7 days";
  if (days < 30) return "Last 30 days";
  const year = then.getFullYear() === today.getFullYear() ? undefined : "numeric";
  return then.toLocaleDateString("en-GB", { month: "long", year });
}

const midnight = (date: Date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();

export const dateTime = (time: number): string =>
  new Date(time * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
