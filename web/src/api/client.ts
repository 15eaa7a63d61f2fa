import { linesOf } from "./lines";

/** An error that the server answered with. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    /** How long the server asks to wait, in seconds. */
    readonly retryAfter: number | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }

  get isUnauthorized(): boolean {
    return this.status === 401;
  }

  get isForbidden(): boolean {
    return this.status === 403;
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

/** The server could not be reached, or the connection broke. */
export class NetworkError extends Error {
  constructor(message = "Cannot reach the server.") {
    super(message);
    this.name = "NetworkError";
  }
}

export interface RequestOptions {
  method?: string;
  /** Sent as JSON. */
  json?: unknown;
  body?: BodyInit;
  headers?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined | null>;
  signal?: AbortSignal;
}

type Watcher = {
  /** The key is missing, wrong or was withdrawn. */
  onUnauthorized: () => void;
  /** Whether the server answered at all. */
  onReachable: (reachable: boolean) => void;
};

/** Sends requests with the key to addresses relative to the page's own. */
export class Client {
  private key: string | null = null;
  private watcher: Watcher | null = null;

  constructor(
    private readonly base: () => string = () => new URL(".", document.baseURI).href,
    private readonly send: typeof fetch = (input, init) => fetch(input, init),
  ) {}

  useKey(key: string | null): void {
    this.key = key;
  }

  watch(watcher: Watcher): void {
    this.watcher = watcher;
  }

  url(path: string, query: RequestOptions["query"] = {}): string {
    const url = new URL(path, this.base());
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
    }
    return url.href;
  }

  /** Return the response of a request that succeeded. Raises `ApiError`, `NetworkError`, or the abort. */
  async fetch(path: string, options: RequestOptions = {}): Promise<Response> {
    const { method, json, body, query, signal } = options;
    const headers = new Headers(options.headers);
    const key = this.key;
    if (key !== null) headers.set("Authorization", `Bearer ${key}`);
    if (json !== undefined) headers.set("Content-Type", "application/json");
    const init: RequestInit = {
      method: method ?? (json === undefined && body === undefined ? "GET" : "POST"),
      headers,
      body: json === undefined ? body : JSON.stringify(json),
      signal,
      credentials: "same-origin",
      redirect: "error",
    };
    let response: Response;
    try {
      response = await this.send(this.url(path, query), init);
    } catch (error) {
      if (signal?.aborted) throw error;
      this.watcher?.onReachable(false);
      throw new NetworkError();
    }
    this.watcher?.onReachable(true);
    if (response.ok) return response;
    // A late answer to an old key must not sign out of the new one.
    if (response.status === 401 && key === this.key) this.watcher?.onUnauthorized();
    throw await errorOf(response);
  }

  async json<T>(path: string, options: RequestOptions = {}): Promise<T> {
    const response = await this.fetch(path, options);
    try {
      return (await response.json()) as T;
    } catch (error) {
      if (options.signal?.aborted) throw error;
      throw new NetworkError("The connection to the server broke.");
    }
  }

  /** Send a request whose answer does not matter. */
  async run(path: string, options: RequestOptions = {}): Promise<void> {
    const response = await this.fetch(path, options);
    await response.body?.cancel();
  }

  /** Send a file; `onProgress` is told how many bytes have gone, which `fetch` cannot tell. */
  upload(path: string, file: Blob, signal: AbortSignal, onProgress: (done: number) => void): Promise<void> {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      const end = () => request.abort();
      request.open("POST", this.url(path));
      if (this.key !== null) request.setRequestHeader("Authorization", `Bearer ${this.key}`);
      request.upload.addEventListener("progress", ({ loaded }) => onProgress(loaded));
      request.addEventListener("load", () => {
        if (request.status >= 200 && request.status < 300) resolve();
        else if (request.status === 401) {
          this.watcher?.onUnauthorized();
          reject(new ApiError(401, messageIn(request.responseText) ?? "The key is not valid."));
        } else {
          const message = messageIn(request.responseText) ?? `The server answered ${request.status}`;
          reject(new ApiError(request.status, message));
        }
      });
      request.addEventListener("error", () =>
        reject(new NetworkError("The connection to the server broke.")),
      );
      request.addEventListener("abort", () => reject(signal.reason));
      request.addEventListener("loadend", () => signal.removeEventListener("abort", end));
      signal.addEventListener("abort", end);
      if (signal.aborted) reject(signal.reason);
      else request.send(file);
    });
  }

  /** Yield the objects of a reply of lines of JSON. Raises `ApiError` for a line with an `error`. */
  async *lines<T>(path: string, options: RequestOptions = {}): AsyncGenerator<T> {
    const response = await this.fetch(path, options);
    if (response.body === null) return;
    try {
      for await (const line of linesOf(response.body)) {
        if (line.trim() === "") continue;
        const value = JSON.parse(line) as T;
        const { error, status } = value as { error?: unknown; status?: unknown };
        if (typeof error === "string") {
          throw new ApiError(typeof status === "number" ? status : 500, error);
        }
        yield value;
      }
    } catch (error) {
      if (error instanceof ApiError || options.signal?.aborted) throw error;
      throw new NetworkError("The connection to the server broke.");
    }
  }

  /** Whether a request may well succeed if it is sent again. */
  isTemporary(error: unknown): boolean {
    if (error instanceof ApiError) return [502, 503, 504].includes(error.status);
    return error instanceof NetworkError || error instanceof TypeError;
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const retryAfter = Number(response.headers.get("Retry-After"));
  const text = await response.text().catch(() => "");
  return new ApiError(
    response.status,
    messageIn(text) ?? `The server answered ${response.status} ${response.statusText}`.trim(),
    Number.isFinite(retryAfter) && retryAfter > 0 ? retryAfter : null,
  );
}

function messageIn(text: string): string | null {
  try {
    const value = JSON.parse(text) as { error?: unknown };
    const error = value.error;
    if (typeof error === "string" && error !== "") return error;
    if (typeof error === "object" && error !== null && "message" in error) return String(error.message);
  } catch {
    // A proxy's page says nothing that helps.
  }
  return null;
}

/** Whether an error only says that the caller gave up. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Return what to tell a person about an error. */
export function messageOf(error: unknown): string {
  return error instanceof Error && error.message !== "" ? error.message : String(error);
}

export const client = new Client();
