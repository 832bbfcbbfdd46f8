"""The real model worker, with a model that cannot bear some letters: each kind of fault that a request can cause.

`~` ends the process in the middle of the pass, as a kernel that breaks does. `^` makes the pass raise. `|` makes
what follows a pass raise while it has a row, and nothing says whose fault that is.
"""

from __future__ import annotations

import os
import signal

import torch

from clag_server.models import worker
from clag_server.models.torch_generate import Event, Generator
from clag_server.models.torch_slm import CausalModel

_hidden = CausalModel.hidden
_events = Generator._events


def hidden(self: CausalModel, ids: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    deadly, bad = (self.tokenizer.encode([letter])[0][0] for letter in "~^")
    if deadly in ids:
        os.kill(os.getpid(), signal.SIGKILL)
    if bad in ids:
        raise ValueError("index out of range")
    return _hidden(self, ids, *rest)  # type: ignore[arg-type]


def events(self: Generator) -> list[Event]:
    bad = self._model.tokenizer.encode(["|"])[0][0]
    if any(bad in job.prompt for job in self._rows.everyone):
        raise KeyError("lost a row")
    return _events(self)


if __name__ == "__main__":
    CausalModel.hidden = hidden  # type: ignore[method-assign, assignment]
    Generator._events = events  # type: ignore[method-assign]
    worker.main()
