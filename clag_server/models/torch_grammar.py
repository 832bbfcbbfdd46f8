"""Constrained decoding: which tokens a grammar allows next. Runs in the worker only.

xgrammar with EBNF costs 8 microseconds a token and kept bounded strings bounded under adversarial sampling
(DESIGN section 7). Grammars are compiled once and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
import xgrammar

from clag_server.models.torch_faults import PASS_FAULTS, describe
from clag_server.models.torch_forced import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clag_server.models.torch_slm import CausalModel

__all__ = ["Constraint", "Endings", "GrammarBook", "GrammarError", "mask_logits"]

_KEPT_GRAMMARS = 64


class GrammarError(ValueError):
    """A grammar that does not compile; the message says where."""


class Endings:
    """Brings texts of a grammar to their end: a token that closes something goes first where it is allowed.

    Args:
        model: The language model.
        texts: The text of each token.
    """

    def __init__(self, model: CausalModel, texts: Sequence[str]) -> None:
        self._model = model
        closing = ('"', '"]', '"}', '"]}', "]", "}", "]}", "}]", '"}]', "]]", "}}")
        plain = [token for token, text in enumerate(texts) if text and text.isascii() and text.isprintable()]
        # A comma after an item would begin another one, so it comes after the brackets. Where nothing can be
        # closed yet, plain letters go first: a character of another script may take four tokens.
        self._tiers = [self._single(closing), self._single((",",)), torch.tensor(plain, dtype=torch.long)]

    def tokens_of(self, ending: str) -> int:
        """Return the tokens to keep back for an end as long as `ending`.

        A quarter more: a model may write a fixed part in smaller tokens than its tokenizer reads it.
        """
        return len(self._model.tokenizer.encode([ending])[0]) * 5 // 4 + 4

    def prefer(self, logits: torch.Tensor, row: int) -> None:
        """Leave only closing tokens in a row of masked logits, where one of them is allowed."""
        for closing in self._tiers:
            tokens = closing.to(logits.device)
            kept = logits[row, tokens]
            if bool((kept > float("-inf")).any()):
                logits[row] = float("-inf")
                logits[row, tokens] = kept
                return

    def _single(self, texts: tuple[str, ...]) -> torch.Tensor:
        """Return the ids of those texts that are one token."""
        encoded = self._model.tokenizer.encode(texts)
        return torch.tensor(sorted({ids[0] for ids in encoded if len(ids) == 1}), dtype=torch.long)


class Constraint:
    """Where one generation stands in its grammar.

    Args:
        matcher: At the start of the grammar.
        others: All tokens but those that end a text, as a bit mask of shape (1, words).
    """

    def __init__(self, matcher: xgrammar.GrammarMatcher, others: torch.Tensor) -> None:
        self._matcher = matcher
        self._others = others
        self.ended = False
        """Whether the text is complete: its end token was taken, or nothing else can follow."""

    def fill(self, bitmask: torch.Tensor, row: int) -> None:
        """Write the allowed tokens into one row of a bit mask."""
        self._matcher.fill_next_token_bitmask(bitmask, row)

    def accept(self, token: int) -> bool:
        """Move on by one token; False when the grammar does not allow it."""
        accepted = bool(self._matcher.accept_token(token))
        if accepted:
            matcher = self._matcher
            self.ended = matcher.is_terminated() or (matcher.is_completed() and not self.allows_any(self._others))
        return accepted

    def go_back(self, tokens: int) -> None:
        """Take the last accepted tokens back."""
        if tokens:
            self._matcher.rollback(tokens)
            self.ended = False

    def forced(self) -> str:
        """Return the text that must come next, whole characters of it; empty where there is a choice."""
        return "" if self.ended else str(self._matcher.find_jump_forward_string())

    def allows_any(self, tokens: torch.Tensor) -> bool:
        """Return whether one of these tokens, a bit mask of shape (1, words), may come next."""
        allowed = torch.zeros_like(tokens)
        self._matcher.fill_next_token_bitmask(allowed, 0)
        return bool((allowed & tokens).any())


class GrammarBook:
    """Compiled grammars of one model."""

    def __init__(self, model: CausalModel) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(
            model.hub_tokenizer, vocab_size=model.vocabulary_size, stop_token_ids=sorted(model.stop_ids)
        )
        # One thread: the worker's torch threads own the cores.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self._compiled: OrderedDict[str, xgrammar.CompiledGrammar] = OrderedDict()
        size = model.vocabulary_size
        self._others = bits_of((token for token in range(size) if token not in model.stop_ids), size)

    def constraint(self, grammar: str) -> Constraint:
        """Return the start of a grammar.

        Args:
            grammar: EBNF, start rule `root`.

        Raises:
            GrammarError: It does not compile.
        """
        compiled = self._compiled.get(grammar)
        if compiled is None:
            try:
                compiled = self._compiler.compile_grammar(grammar)
            except (RuntimeError, ValueError) as error:
                raise GrammarError(f"the grammar does not compile: {error}") from error
            self._compiled[grammar] = compiled
            if len(self._compiled) > _KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
        else:
            self._compiled.move_to_end(grammar)
        return Constraint(xgrammar.GrammarMatcher(compiled), self._others)


def mask_logits(
    logits: torch.Tensor, constraints: list[Constraint | None], fail: Callable[[int, str], None]
) -> None:
    """Set the logits of disallowed tokens to minus infinity, in place.

    Args:
        logits: Shape (rows, vocabulary).
        constraints: One a row, None where everything is allowed.
        fail: Called with a row whose grammar fails, and the reason; the others are masked.
    """
    rows = [i for i, one in enumerate(constraints) if one is not None]
    if not rows:
        return
    bitmask = xgrammar.allocate_token_bitmask(len(constraints), logits.shape[1])
    for i in rows:
        constraint = constraints[i]
        if constraint is not None:
            try:
                constraint.fill(bitmask, i)
            except PASS_FAULTS as error:
                fail(i, describe(error))
    xgrammar.apply_token_bitmask_inplace(logits, bitmask.to(logits.device), indices=rows)
