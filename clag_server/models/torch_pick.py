"""The next token of each running generation: the likeliest that its grammar allows. Runs in the worker only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clag_server.models.torch_forced import ForcedText
from clag_server.models.torch_grammar import Endings, GrammarBook, mask_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from clag_server.models.torch_grammar import Constraint
    from clag_server.models.torch_job import Job
    from clag_server.models.torch_slm import CausalModel

__all__ = ["TokenPicker"]


class TokenPicker:
    """Picks tokens greedily.

    Args:
        model: The language model.

    Attributes:
        forced: Finds text that needs no picking.
    """

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self._grammars = GrammarBook(model)
        texts = [model.tokenizer.decode([token]) for token in range(model.vocabulary_size)]
        self._endings = Endings(model, texts)
        self.forced = ForcedText(model, texts)

    def constraint(self, grammar: str) -> Constraint:
        """Return the start of a grammar.

        Raises:
            GrammarError: It does not compile.
        """
        return self._grammars.constraint(grammar)

    def tokens_of(self, ending: str) -> int:
        """Return the tokens to keep back for an end as long as `ending`."""
        return self._endings.tokens_of(ending)

    def pick(self, hidden: torch.Tensor, jobs: Sequence[Job]) -> list[int]:
        """Return each job's most likely allowed token.

        A job whose grammar fails has failed with the reason; the token that is returned for it means nothing.

        Args:
            hidden: Hidden states of shape (len(jobs), width).
            jobs: Whose they are.
        """
        logits = self._model.logits(hidden)
        mask_logits(logits, [job.constraint for job in jobs], lambda row, reason: _fail(jobs[row], reason))
        for row, job in enumerate(jobs):
            if job.ending and job.failure is None:
                self._endings.prefer(logits, row)
        tokens: list[int] = logits.argmax(-1).tolist()
        return tokens


def _fail(job: Job, reason: str) -> None:
    job.failure = reason
