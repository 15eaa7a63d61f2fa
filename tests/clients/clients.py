"""Popular clients: the programs that use them, the features they lack, and the errors they raise."""

from __future__ import annotations

from dataclasses import dataclass, field

COLUMNS = ("chat", "stream", "schema", "tools", "embeddings", "errors")

_OPENAI = ("NotFoundError", "BadRequestError")
_OLLAMA = ("ResponseError", "ResponseError")

#: How the client requests a schema.
_CALL = "as a tool call"
_BOTH = f"{_CALL}, and with `NativeOutput`"


@dataclass(frozen=True, eq=False)
class Client:
    """A client, one row of the table in docs/clients.md."""

    name: str
    package: str  # its version is shown
    program: str  # in python/ or javascript/
    way: str = ""
    #: Names of its errors for an unknown model and a refused request; None if `without` has the column.
    errors: tuple[str, str] | None = _OPENAI
    #: Columns of features the client lacks, and the text shown instead.
    without: dict[str, str] = field(default_factory=dict)
    #: Settings and remarks, by column.
    notes: dict[str, str] = field(default_factory=dict)
    #: Whether it makes arguments match the schema, which leaves the model no choice of calls.
    strict: bool = False

    @property
    def id(self) -> str:
        return " ".join(filter(None, (self.program, self.way)))


def _anthropic_has_none() -> dict[str, str]:
    return {"embeddings": "API has none"}


PYTHON = [
    Client("ollama", "ollama", "with_ollama.py", errors=_OLLAMA),
    Client("openai, chat completions", "openai", "with_openai.py", "chat"),
    Client("openai, responses", "openai", "with_openai.py", "responses"),
    Client("anthropic", "anthropic", "with_anthropic.py", without=_anthropic_has_none()),
    Client("LangChain: langchain-ollama", "langchain-ollama", "with_langchain.py", "ollama", errors=_OLLAMA),
    Client(
        "LangChain: langchain-openai",
        "langchain-openai",
        "with_langchain.py",
        "openai",
        errors=("OpenAIModelNotFoundError", "OpenAIInvalidRequestError"),
        notes={
            "embeddings": "`check_embedding_ctx_length=False`; otherwise it sends OpenAI token ids",
        },
    ),
    Client(
        "LlamaIndex: Ollama",
        "llama-index-llms-ollama",
        "with_llamaindex.py",
        "ollama",
        errors=_OLLAMA,
        notes={"chat": "`context_window` is sent as `num_ctx`"},
    ),
    Client(
        "LlamaIndex: OpenAILike",
        "llama-index-llms-openai-like",
        "with_llamaindex.py",
        "openai",
        notes={
            "chat": "`is_chat_model=True`",
            "schema": _CALL,
            "tools": "`is_function_calling_model=True`",
        },
    ),
    *(
        Client(
            f"LiteLLM: `{prefix}/`",
            "litellm",
            "with_litellm.py",
            way,
            without=_anthropic_has_none() if way == "anthropic" else {},
            notes={"embeddings": "with the prefix `ollama/`"} if way == "ollama" else {},
        )
        for prefix, way in (("ollama_chat", "ollama"), ("openai", "openai"), ("anthropic", "anthropic"))
    ),
    Client(
        "llm, extra-openai-models.yaml",
        "llm",
        "with_llm.py",
        "openai",
        without={"embeddings": "client has none"},
        notes={
            "schema": "`supports_schema: true`",
            "tools": "`supports_tools: true`",
            "embeddings": "except OpenAI's own",
        },
    ),
    Client(
        "llm, plugin llm-ollama",
        "llm-ollama",
        "with_llm.py",
        "ollama",
        errors=None,
        without={"errors": "client has none"},
        notes={"errors": "only its own: it requests only models the server lists"},
    ),
    *(
        Client(
            f"instructor: {mode}",
            "instructor",
            "with_instructor.py",
            way,
            errors=("InstructorRetryException", "InstructorRetryException"),
            without={"tools": "client has none", "embeddings": "client has none"},
            notes={"chat": "`response_model=None`", "stream": "partial objects"},
        )
        for mode, way in (
            ("`Mode.TOOLS`", "tools"),
            ("`Mode.JSON_SCHEMA`", "json_schema"),
            ("`Mode.ANTHROPIC_TOOLS`", "anthropic"),
        )
    ),
    *(
        Client(
            f"pydantic-ai: {model}",
            "pydantic-ai-slim",
            "with_pydantic_ai.py",
            way,
            errors=("ModelHTTPError", "ModelHTTPError"),
            without=_anthropic_has_none() if way == "anthropic" else {},
            notes={"schema": schema}
            | ({"tools": "strict: arguments always match the schema"} if strict else {}),
            strict=strict,
        )
        for model, way, strict, schema in (
            ("OpenAIChatModel", "openai", True, _BOTH),
            ("OpenAIResponsesModel", "responses", True, _BOTH),
            ("OllamaModel", "ollama", False, _BOTH),
            ("AnthropicModel", "anthropic", False, _CALL),
        )
    ),
    Client("Haystack: OpenAI", "haystack-ai", "with_haystack.py", "openai"),
    Client("Haystack: ollama-haystack", "ollama-haystack", "with_haystack.py", "ollama", errors=_OLLAMA),
    *(
        Client(
            f"Open WebUI's backend: {api}",
            "",
            "with_open_webui.py",
            way,
            errors=("RefusedError", "RefusedError"),
            without={"schema": "client has none"},
            notes={"chat": "its requests are replayed; it does not run"},
        )
        for api, way in (("Ollama", "ollama"), ("OpenAI", "openai"))
    ),
]

JAVASCRIPT = [
    Client("ollama", "ollama", "with_ollama.mjs", errors=_OLLAMA),
    Client("openai, chat completions", "openai", "with_openai.mjs", "chat"),
    Client("openai, responses", "openai", "with_openai.mjs", "responses"),
    Client("anthropic", "@anthropic-ai/sdk", "with_anthropic.mjs", without=_anthropic_has_none()),
    *(
        Client(
            f"ai: {package}",
            package,
            "with_ai.mjs",
            way,
            errors=("APICallError", "APICallError"),
            without=_anthropic_has_none() if way == "anthropic" else {},
            notes=notes,
        )
        for package, way, notes in (
            ("@ai-sdk/openai-compatible", "compatible", {"schema": "`supportsStructuredOutputs: true`"}),
            ("@ai-sdk/openai", "openai", {}),
            (
                "@ai-sdk/anthropic",
                "anthropic",
                {"schema": "`structuredOutputMode: 'outputFormat'` in `providerOptions.anthropic`"},
            ),
            (
                "ollama-ai-provider-v2",
                "ollama",
                {
                    "chat": "options are in `providerOptions.ollama.options`",
                    "errors": "the message is in `responseBody`",
                },
            ),
        )
    ),
]

CLIENTS = [*PYTHON, *JAVASCRIPT]

#: Its program also requests likelihoods, and takes other arguments.
LM_EVAL = Client(
    "lm-eval",
    "lm-eval",
    "with_lm_eval.py",
    errors=None,
    without=dict.fromkeys(COLUMNS[1:], "client has none"),
    notes={"chat": "`local-chat-completions`; likelihoods with `local-completions`, see below"},
)
