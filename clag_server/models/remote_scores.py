"""The channel score by prompt log-probabilities: three ways in which servers give them, one way to use them.

score(option) = log P(text | head) is the sum over the text's tokens in the prompt `head text`. Where the text
begins is not guessed: the head alone is asked for once and remembered, and the tokens that both prompts share are
the head's. Should the last token of a head melt into the first of the text (it does not with tokenizers whose words
begin with their space), the chain rule still holds: what the head had after the shared tokens is taken off.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clag_server.models.remote_failure import FailureKind, RemoteFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PromptScores", "ScoreMethod", "channel_score", "read_scores", "score_request"]

_ROUNDING: Final = 1e-3
"""A log-probability may be so far above zero, in nats: servers compute in half precision."""


class ScoreMethod(enum.Enum):
    """How a server gives the log-probabilities of a prompt."""

    PROMPT_LOGPROBS = "prompt_logprobs"
    """vLLM's field of `/v1/completions`."""
    ECHO = "echo"
    """`echo` with `logprobs` on `/v1/completions`: the older OpenAI interface; vLLM and SGLang have it too."""
    SGLANG = "generate"
    """SGLang's own `/generate` with `return_logprob`."""


@dataclass(frozen=True, slots=True)
class PromptScores:
    """A prompt's tokens with log P(token | tokens before); the first has none, and stands as 0."""

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    """In nats, as many as tokens."""


def score_request(method: ScoreMethod, model: str, prompts: Sequence[str]) -> tuple[str, bool, dict[str, object]]:
    """Return the path, whether it is the server's own, and the body of a request for all prompts."""
    if method is ScoreMethod.SGLANG:
        sampling = {"max_new_tokens": 1, "temperature": 0}
        body: dict[str, object] = {"text": list(prompts), "sampling_params": sampling}
        return "/generate", True, body | {"return_logprob": True, "logprob_start_len": 0, "stream": False}
    body = {"model": model, "prompt": list(prompts), "max_tokens": 1, "temperature": 0}
    if method is ScoreMethod.PROMPT_LOGPROBS:
        return "/completions", False, body | {"prompt_logprobs": 0}
    return "/completions", False, body | {"echo": True, "logprobs": 1}


def read_scores(method: ScoreMethod, answer: Mapping[str, object], count: int) -> list[PromptScores]:
    """Read the answer to `score_request`.

    Args:
        method: How it was asked.
        answer: What came back.
        count: Number of prompts.

    Raises:
        RemoteFailure: Not one list of log-probabilities a prompt, or a length or a number that cannot be.
    """
    if method is ScoreMethod.SGLANG:
        return [_sglang(item) for item in _in_order(answer.get("items"), count)]
    choices = _in_order(answer.get("choices"), count)
    if method is ScoreMethod.ECHO:
        scores = [_echo(choice) for choice in choices]
    else:
        scores = [_prompt_logprobs(choice) for choice in choices]
    told = answer.get("usage")
    total = told.get("prompt_tokens") if isinstance(told, dict) else None
    counted = sum(len(one.tokens) for one in scores)
    if total is not None and total != counted:
        raise _garbled(f"log-probabilities of {counted} tokens for a prompt of {total}")
    return scores


def channel_score(full: PromptScores, head: PromptScores) -> float:
    """Return log P(text | head) in nats.

    Args:
        full: Of the head followed by the text.
        head: Of the head alone.

    Raises:
        RemoteFailure: The two are not of the same head, or there is no text after it.
    """
    shared = 0
    for ours, theirs in zip(full.tokens, head.tokens, strict=False):
        if ours != theirs:
            break
        shared += 1
    if shared * 2 < len(head.tokens) or len(full.tokens) <= shared:
        raise _garbled(f"only {shared} of {len(head.tokens)} tokens of a head begin the prompt that it begins")
    return sum(full.logprobs[shared:]) - sum(head.logprobs[shared:])


def _in_order(items: object, count: int) -> list[Mapping[str, object]]:
    if not isinstance(items, list) or len(items) != count or not all(isinstance(one, dict) for one in items):
        raise _garbled(f"not {count} answers for {count} prompts")
    if all(isinstance(one.get("index"), int) for one in items):
        items = sorted(items, key=lambda one: int(one["index"]))
        if [one["index"] for one in items] != list(range(count)):
            raise _garbled("answers with doubled numbers")
    return items


def _prompt_logprobs(choice: Mapping[str, object]) -> PromptScores:
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list) or not entries:
        raise _garbled("no prompt_logprobs")
    tokens, logprobs = [""], [0.0]  # the first has no entry: nothing comes before it
    for entry in entries[1:]:
        if not isinstance(entry, dict) or len(entry) != 1:
            # With more than one it is not told which of them is the prompt's own.
            raise _garbled("not one log-probability a token")
        ((token, facts),) = entry.items()
        tokens.append(str(token))
        logprobs.append(_logprob(facts.get("logprob") if isinstance(facts, dict) else None))
    return PromptScores(tuple(tokens), tuple(logprobs))


def _echo(choice: Mapping[str, object]) -> PromptScores:
    found = choice.get("logprobs")
    tokens = found.get("tokens") if isinstance(found, dict) else None
    logprobs = found.get("token_logprobs") if isinstance(found, dict) else None
    if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
        raise _garbled("no echoed log-probabilities")
    # The last one is the token that had to be generated.
    return _checked(tokens[:-1], logprobs[:-1])


def _sglang(item: Mapping[str, object]) -> PromptScores:
    meta = item.get("meta_info")
    entries = meta.get("input_token_logprobs") if isinstance(meta, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, list) and len(one) >= 2 for one in entries):
        raise _garbled("no input_token_logprobs")
    total = meta.get("prompt_tokens") if isinstance(meta, dict) else None
    if total is not None and total != len(entries):
        raise _garbled(f"log-probabilities of {len(entries)} tokens for a prompt of {total}")
    return _checked([one[1] for one in entries], [one[0] for one in entries])


def _checked(tokens: Sequence[object], logprobs: Sequence[object]) -> PromptScores:
    if len(tokens) < 2:
        raise _garbled("log-probabilities of less than two tokens")
    return PromptScores(tuple(map(str, tokens)), (0.0, *map(_logprob, logprobs[1:])))


def _logprob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _garbled("a log-probability is missing")
    if not math.isfinite(value) or value > _ROUNDING:
        raise _garbled(f"a log-probability is {value}")
    return min(float(value), 0.0)


def _garbled(reason: str) -> RemoteFailure:
    return RemoteFailure(FailureKind.GARBLED, f"the server gave {reason}")
