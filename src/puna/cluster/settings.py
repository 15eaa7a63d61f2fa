"""Settings of a cluster, from the environment and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from puna.cluster.split_plan import Wish, parse_split
from puna.config import env, env_int, home, path_of
from puna.errors import PunaError
from puna.hosts import Host
from puna.options import replicas_from_env

#: Ray's own port, which its users know.
DEFAULT_PORT = 6379
#: Memory for models on a node whose operator does not limit it.
_UNLIMITED_MB = 1 << 40


@dataclass(frozen=True)
class ClusterSettings:
    """The part that this machine takes in a cluster.

    `host` is the address by which other nodes reach it. With `join`, it is a worker of the head at that
    address; with `ray`, it is the head of a Ray cluster that runs already.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    join: str = ""
    ray: str = ""
    folder: Path = Path()  # token and certificates, made by `puna cluster init`
    temp: str = ""  # Ray's folder for sockets and logs; empty: its own choice
    replicas: tuple[int, int] = (1, 0)  # of a model: minimum and maximum; 0: one on each node
    split: str | tuple[Wish, ...] = "auto"  # when and how models are divided; see `parse_split`
    any_kernels: bool = False  # stages of a model may use kernels that differ in their last bits

    @property
    def address(self) -> str:
        """The address at which other nodes find the head."""
        return self.join or Host(address=self.host, port=self.port).netloc

    @classmethod
    def from_env(cls, *, host: str = "", join: str = "", ray: str = "", split: str = "") -> ClusterSettings:
        """Read the settings; the arguments come first. Raises PunaError."""
        address = host or env("CLUSTER_HOST") or cls.host
        name, colon, port = address.rpartition(":") if address.count(":") == 1 else (address, "", "")
        if colon and not (port.isdecimal() and 0 < int(port) < 65536):
            raise PunaError(f"the cluster's address must be HOST or HOST:PORT, not {address!r}")
        memory_limit()  # warns of a wrong value here, where the operator sees it
        join, ray = join or env("CLUSTER_JOIN"), ray or env("CLUSTER_RAY")
        if join and ray:
            raise PunaError("a node either joins Puna's cluster (--join) or uses Ray's (--ray), not both")
        if join and ":" not in join:
            join = f"{join}:{DEFAULT_PORT}"
        return cls(
            host=name or address,
            port=int(port) if port else env_int("CLUSTER_PORT", DEFAULT_PORT, least=1),
            join=join,
            ray=ray,
            folder=path_of(env("CLUSTER_FOLDER")) if env("CLUSTER_FOLDER") else home() / "cluster",
            temp=env("CLUSTER_TEMP"),
            replicas=replicas_from_env(),
            split=parse_split(split or env("SPLIT") or "auto"),
            any_kernels=_any_kernels(env("SPLIT_KERNELS") or "same"),
        )


def memory_limit() -> int:
    """Return the bytes that models may take on this node, by `PUNA_CLUSTER_MEMORY_MB`."""
    return env_int("CLUSTER_MEMORY_MB", _UNLIMITED_MB, least=1, instead="all memory") << 20


def _any_kernels(text: str) -> bool:
    if text not in ("same", "any"):
        raise PunaError(f"PUNA_SPLIT_KERNELS must be same or any, not {text!r}")
    return text == "any"
