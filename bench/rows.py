"""The rows of the comparison: models, tests, and the ratios to reach."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The fraction of the measured read bandwidth that decoding one stream should reach.
BANDWIDTH_BAR = 0.85
#: The longest prompt that runs more than once.
BRIEF_PROMPT = 4096


@dataclass(frozen=True)
class Test:
    """One measurement: evaluating a prompt of `tokens` tokens, or decoding that many."""

    kind: str  # "prompt" or "decode"
    tokens: int
    streams: int = 1
    depth: int = 0  # tokens in the cache before decoding, beyond the short prompt
    bar: float | None = None  # the ratio to llama.cpp to reach
    share: float = BANDWIDTH_BAR  # of the read bandwidth to reach, if that is the bound

    @property
    def label(self) -> str:
        if self.kind == "prompt":
            return f"prompt of {self.tokens}"
        if self.depth:
            return f"decode after {self.depth}"
        return "decode" if self.streams == 1 else f"decode, {self.streams} streams"

    def runs(self, repetitions: int) -> int:
        """Return how often the test runs.

        Decoding one stream, which is short and noisy, runs three times for each repetition; a prompt that
        takes minutes runs once.
        """
        if self.kind == "decode" and self.streams == 1 and not self.depth:
            return 3 * repetitions
        return 1 if self.kind == "prompt" and self.tokens > BRIEF_PROMPT else repetitions

    @property
    def brief(self) -> Test:
        """The test that chooses a peer's setting: the same, or one with a shorter prompt."""
        return replace(self, tokens=min(self.tokens, BRIEF_PROMPT)) if self.kind == "prompt" else self

    @property
    def context(self) -> int:
        """The context length that the test needs."""
        return self.tokens + self.depth + 24


@dataclass(frozen=True)
class Case:
    """Tests of one model that run on the same loaded engines."""

    shape: str
    mix: str
    tests: tuple[Test, ...]
    openvino: bool = False  # also compare with OpenVINO GenAI, which has integer weights of this size

    @property
    def name(self) -> str:
        return f"{self.shape} {self.mix}"


def prompt(tokens: int, bar: float | None = None) -> Test:
    return Test("prompt", tokens, bar=bar)


def decode(
    tokens: int, bar: float | None = None, *, streams: int = 1, depth: int = 0, share: float = BANDWIDTH_BAR
) -> Test:
    return Test("decode", tokens, streams, depth, bar, share)


CASES = (
    Case("1b", "q4_k_m", (prompt(512, 1.8), decode(32), decode(16, 5.0, streams=8))),
    Case("1b", "q4_k_m", (prompt(4096, 2.2),)),
    Case("1b", "q4_k_m", (prompt(16384, 2.0),)),
    Case("1b", "q4_k_m", (decode(16, depth=16384, share=0.8),)),
    Case("1b", "q8_0", (prompt(512), decode(32), decode(16, 5.0, streams=8)), openvino=True),
    Case("1b", "q4_0", (prompt(512), decode(32), decode(16, 5.0, streams=8)), openvino=True),
    Case("1b", "q5_k_m", (prompt(512, 1.6), decode(32))),
    Case("1b", "q6_k", (prompt(512, 1.6), decode(32))),
    Case("1b", "iq4_xs", (prompt(512), decode(32))),
    Case("1b", "mxfp4", (prompt(512),)),
    Case("1b", "f16", (prompt(512), decode(16, share=0.9))),
    Case("135m", "q8_0", (decode(64), decode(16, 5.0, streams=8))),
    Case("3b", "q4_k_m", (prompt(512, 1.8), decode(16))),
    Case("8x150m", "q4_k_m", (prompt(512), decode(32, 1.3, share=0.8), decode(16, 3.0, streams=8))),
)

#: Processors without AVX-512 take twice as long for a row.
AVX2_CASES = (
    Case("1b", "q4_k_m", (prompt(512, 1.8), decode(32), decode(16, 5.0, streams=8))),
    Case("1b", "q8_0", (prompt(512), decode(16, 5.0, streams=8))),
    Case("1b", "q4_0", (prompt(512), decode(16, 5.0, streams=8))),
    Case("1b", "iq4_xs", (prompt(512),)),
    Case("135m", "q8_0", (decode(64), decode(16, 5.0, streams=8))),
    Case("8x150m", "q4_k_m", (prompt(512), decode(32, 1.3, share=0.8), decode(16, 3.0, streams=8))),
)

#: One model for each way in which architectures differ in speed, for a separate table.
ARCHITECTURES = (
    Case("delta-0.8b", "q4_k_m", (prompt(512), decode(32, share=0.75), decode(16, 5.0, streams=8))),
    Case("windowed-1b", "q4_k_m", (prompt(512, 1.8), decode(32), decode(16, 5.0, streams=8))),
    Case("experts-2.5b", "q4_k_m", (prompt(512), decode(32, 1.3, share=0.8), decode(16, 3.0, streams=8))),
    Case("latent-1.7b", "q4_k_m", (prompt(512), decode(32, 1.3, share=0.8), decode(16, 3.0, streams=8))),
)


def chosen(cases: tuple[Case, ...], pattern: str) -> tuple[Case, ...]:
    """Return the tests whose model and label contain all words of a comma-separated part of `pattern`."""
    wanted = [part.lower().split() for part in pattern.split(",")]

    def matches(case: Case, test: Test) -> bool:
        words = f"{case.name} {test.label}".replace(",", "").split()
        return any(all(word in words for word in part) for part in wanted)

    kept = [replace(case, tests=tuple(test for test in case.tests if matches(case, test))) for case in cases]
    return tuple(case for case in kept if case.tests)
