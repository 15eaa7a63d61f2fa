"""Choice of the model for an agent: it must call tools and have a context that is long enough."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from puna.cli.client import Client
from puna.cli.launch.agents import Agent
from puna.errors import RequestError

#: The context of requests on a server that `puna launch` starts, unless PUNA_CONTEXT_LENGTH is set.
STARTED_CONTEXT = 65536


@dataclass(frozen=True)
class AgentModel:
    """A model of the server. `context` is the number of tokens a request may use, 0 if unknown.

    `longest` is the number the model was made for.
    """

    name: str
    capabilities: frozenset[str]
    context: int
    longest: int

    @property
    def is_limited_by_server(self) -> bool:
        """Whether the server gives requests less context than the model has."""
        return 0 < self.context < self.longest


@dataclass(frozen=True)
class Choice:
    """The chosen model, and the reason to show."""

    model: AgentModel
    reason: str


def agent_models(client: Client) -> list[AgentModel]:
    """Return the server's models, the one last changed first."""
    default = client.get("/api/version").get("context_length") or 0
    found = [_agent_model(client, item, int(default)) for item in client.get("/api/tags").get("models") or ()]
    return [one for one in found if one is not None]


def _agent_model(client: Client, item: Mapping[str, Any], default: int) -> AgentModel | None:
    name = str(item["name"]).removesuffix(":latest")
    capabilities = frozenset(item.get("capabilities") or ())
    if item.get("remote_host") or "completion" not in capabilities:
        return None
    longest = int(item["details"].get("context_length") or 0)
    shown = client.post("/api/show", {"model": name}).get("parameters") or ""
    own = re.search(r"^num_ctx\s+(\d+)", shown, re.M)
    limits = [limit for limit in (int(own[1]) if own else default, longest) if limit > 0]
    return AgentModel(name, capabilities, min(limits, default=0), longest)


def choose(agent: Agent, models: Sequence[AgentModel], wanted: str | None) -> Choice:
    """Return the model `wanted`, else the newest that suits the agent; `models` begin with the newest.

    Raises RequestError if there is no such model, or none that suits, with what would help.
    """
    if wanted is not None:
        return _check(agent, models, wanted)
    suitable = [model for model in models if not _obstacle(agent, model)]
    if not suitable:
        raise RequestError(_no_model(agent, models))
    best = suitable[0]
    traits = ["calls tools"] if agent.tools else []
    if best.context:
        traits.append(f"{best.context} tokens of context")
    if len(suitable) > 1:
        traits.append(f"the newest of {len(suitable)} that suit")
    return Choice(best, ", ".join(traits))


def _check(agent: Agent, models: Sequence[AgentModel], wanted: str) -> Choice:
    name = wanted.removesuffix(":latest")
    found = next((model for model in models if model.name.lower() == name.lower()), None)
    if found is None:
        there = ", ".join(model.name for model in models) or "none"
        raise RequestError(
            f"there is no model '{wanted}' that chats (there are: {there}); 'puna pull {wanted}' fetches it"
        )
    if agent.tools and "tools" not in found.capabilities:
        raise RequestError(
            f"model '{found.name}' cannot call tools, which {agent.title} needs; choose another"
        )
    # With so little, agents repeat themselves for ever, and it can be mended.
    if found.is_limited_by_server and found.longest >= agent.context and (why := shortage(agent, found)):
        raise RequestError(why)
    return Choice(found, "as you chose")


def shortage(agent: Agent, model: AgentModel) -> str:
    """Return a sentence if the model's context is too short for the agent, and what helps; else nothing."""
    if not 0 < model.context < agent.context:
        return ""
    what = f"'{model.name}' has {model.context} tokens of context here; {agent.title} needs {agent.context}"
    return f"{what}. {_LONGER}" if model.is_limited_by_server else what


_LONGER = (
    "The model has more, but this server gives it less: stop it with 'puna serve --stop' and launch again, "
    f"which starts one with PUNA_CONTEXT_LENGTH={STARTED_CONTEXT}, or set num_ctx in the model's Modelfile"
)


def _obstacle(agent: Agent, model: AgentModel) -> str:
    """Return why the model does not suit the agent, or nothing."""
    if agent.tools and "tools" not in model.capabilities:
        return "cannot call tools"
    if 0 < model.context < agent.context:
        return f"has {model.context} tokens of context"
    return ""


def _no_model(agent: Agent, models: Sequence[AgentModel]) -> str:
    needs = f"{agent.context} tokens of context"
    needs = f"a model that calls tools, with {needs}" if agent.tools else f"a model with {needs}"
    reasons = "; ".join(f"'{model.name}' {_obstacle(agent, model)}" for model in models[:8])
    text = f"{agent.title} needs {needs}, and there is none" + (f" ({reasons})" if reasons else "")
    able = [model for model in models if not agent.tools or "tools" in model.capabilities]
    if any(model.is_limited_by_server and model.longest >= agent.context for model in able):
        return f"{text}. {_LONGER}"
    return f"{text}; pull one, such as 'puna pull qwen3', or name one with --model"
