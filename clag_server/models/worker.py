"""The model worker: a child process in which one thread owns all of torch.

The main thread computes; a reader thread sorts incoming frames by priority. The embedder is loaded first, then
the worker says that it is ready, and the language model is loaded beside it by a thread that ends with that (the
server holds requests for it back until then). The main thread runs one forward pass at a time and looks for more
urgent work after each (`worker_turns`).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.children import lifeline
from clag_server.models import protocol
from clag_server.models.worker_link import WorkerLink
from clag_server.models.worker_marks import PassMarks
from clag_server.models.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from clag_server.models.torch_device import DeviceChoice
    from clag_server.models.worker_turns import Turns

__all__ = ["main"]

# What libraries raise for bad weights. Anything else ends the worker, which is restarted.
_LOAD_FAULTS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, MemoryError)


def main() -> None:
    """Load the models and serve the inherited socket."""
    parser = argparse.ArgumentParser(description="CLAG's model worker; started by the server")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--marks", type=Path, required=True)
    arguments = parser.parse_args()
    settings = WorkerSettings(**json.loads(arguments.settings))
    threading.excepthook = _end_process
    link = WorkerLink(socket.socket(fileno=arguments.fd))
    link.start()
    _serve(settings, link, PassMarks(arguments.marks), lifeline.ready)


def _serve(settings: WorkerSettings, link: WorkerLink, marks: PassMarks, say_ready: Callable[[], None]) -> None:
    lifeline.progress("importing torch")
    import torch
    import transformers

    from clag_server.models.torch_device import choose_device
    from clag_server.models.worker_turns import Turns

    transformers.utils.logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        choice = choose_device(settings.device)
    except RuntimeError as error:
        lifeline.fatal(f"no device {settings.device!r}: {error}")
    turns = Turns(link, marks)
    lifeline.progress("reading the embedder's weights")
    _load_embedder(settings, choice, link, turns)
    say_ready()
    threading.Thread(target=_load_slm, args=(settings, choice, link, turns), name="load slm", daemon=True).start()
    turns.run()


def _load_embedder(settings: WorkerSettings, choice: DeviceChoice, link: WorkerLink, turns: Turns) -> None:
    from clag_server.models.torch_embedder import TorchEmbedder

    if settings.embedder is None:
        return
    started_s = time.monotonic()
    tokens = settings.embed_batch_tokens or choice.embed_batch_tokens
    try:
        embedder = TorchEmbedder(
            Path(settings.embedder),
            choice.device,
            window_tokens=settings.embed_tokens,
            windows=settings.embed_windows,
            batch_tokens=tokens,
        )
        for _ in embedder.embed(["ready"]):
            """The first pass sets up kernels; nobody waits for it yet."""
    except _LOAD_FAULTS as error:
        link.send(protocol.NotLoaded("embedder", f"cannot load {settings.embedder}: {error}"))
        return
    embedder.call_before_layers(turns.between_layers)
    turns.embedder = embedder
    took_s = time.monotonic() - started_s
    link.send(protocol.Loaded("embedder", str(choice.device), "float32", took_s, tokens))


def _load_slm(settings: WorkerSettings, choice: DeviceChoice, link: WorkerLink, turns: Turns) -> None:
    from clag_server.models.torch_choose import ChannelScorer
    from clag_server.models.torch_device import choose_dtype
    from clag_server.models.torch_generate import Generator
    from clag_server.models.torch_slm import CausalModel

    if settings.slm is None:
        return
    started_s = time.monotonic()
    batch_tokens = settings.choose_batch_tokens or choice.choose_batch_tokens
    slots = settings.slots or choice.slots
    try:
        link.send(protocol.Progress("slm", "choosing a number format"))
        dtype = choose_dtype(settings.dtype, choice.device)
        link.send(protocol.Progress("slm", "reading the weights"))
        model = CausalModel(Path(settings.slm), choice.device, dtype)
        link.send(protocol.Progress("slm", "running the first pass"))
        scorer = ChannelScorer(
            model,
            text_tokens=settings.choose_text_tokens,
            head_tokens=settings.choose_head_tokens,
            batch_tokens=batch_tokens,
            cache_bytes=settings.prefix_cache_mib << 20,
        )
        generator = Generator(
            model,
            slots=slots,
            context_tokens=settings.context_tokens,
            prefill_tokens=settings.prefill_tokens or choice.prefill_tokens,
            # Beginnings of prompts are few and long, heads of clusters many: a quarter more for them.
            prefix_bytes=settings.prefix_cache_mib << 18,
            marked=turns.marks.during,
        )
        for _ in scorer.score(["ready"], [[("", "ready:")]]):
            """The first pass sets up kernels; nobody waits for it yet."""
    except _LOAD_FAULTS as error:
        link.send(protocol.NotLoaded("slm", f"cannot load {settings.slm}: {error}"))
        return
    model.call_before_layers(turns.between_layers)  # after the first pass, which is this thread's
    turns.scorer, turns.generator = scorer, generator
    took_s = time.monotonic() - started_s
    name = str(dtype).removeprefix("torch.")
    link.send(protocol.Loaded("slm", str(choice.device), name, took_s, batch_tokens, slots))


def _end_process(fault: threading.ExceptHookArgs) -> None:
    """A thread that ends by a fault takes the worker along: half a worker would answer nobody."""
    threading.__excepthook__(fault)
    os._exit(1)


if __name__ == "__main__":
    main()
