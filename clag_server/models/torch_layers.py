"""Places inside a forward pass where something more urgent may run. Runs in the worker only.

A pass over a full batch takes a few hundred milliseconds on a CPU, one layer of it a few. Whoever waits for an
answer then waits for one layer, however large the others' passes are, and those lose nothing in throughput.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["call_before_layers"]


def call_before_layers(model: torch.nn.Module, call: Callable[[], None]) -> None:
    """Call `call` before each of a model's layers, which are its longest list of modules.

    `call` may run the same model: a layer keeps nothing between two calls.
    """
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    for layer in max(lists, key=len, default=torch.nn.ModuleList()):
        layer.register_forward_pre_hook(lambda *_: call())
