"""The model worker: a child process in which one thread owns all of torch.

The main thread computes; a reader thread sorts incoming frames by priority. The embedder is loaded first, then
the worker says that it is ready, and the language model is loaded beside it by a thread that ends with that (the
server holds requests for it back until then). Between two steps of generation, waiting embeddings and scorings
run first.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clag_server.children import lifeline
from clag_server.models import protocol
from clag_server.models.worker_link import Request, WorkerLink
from clag_server.models.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from clag_server.models.torch_choose import ChannelScorer
    from clag_server.models.torch_device import DeviceChoice
    from clag_server.models.torch_embedder import TorchEmbedder
    from clag_server.models.torch_generate import Generator

__all__ = ["main"]


class _Worker:
    def __init__(self, settings: WorkerSettings, link: WorkerLink) -> None:
        self._settings = settings
        self._link = link
        self._embedder: TorchEmbedder | None = None
        self._scorer: ChannelScorer | None = None
        self._generator: Generator | None = None

    def load_embedder(self, choice: DeviceChoice) -> None:
        from clag_server.models.torch_embedder import TorchEmbedder

        folder = self._settings.embedder
        if folder is None:
            return
        started_s = time.monotonic()
        tokens = self._settings.embed_batch_tokens or choice.embed_batch_tokens
        try:
            embedder = TorchEmbedder(Path(folder), choice.device, self._settings.embed_tokens, tokens)
            embedder.embed(["ready"], self._link.beat)  # the first pass sets up kernels; nobody waits for it yet
        except _LOAD_FAULTS as error:
            self._link.send(protocol.NotLoaded("embedder", f"cannot load {folder}: {error}"))
            return
        self._embedder = embedder
        took_s = time.monotonic() - started_s
        self._link.send(protocol.Loaded("embedder", str(choice.device), "float32", took_s, tokens))

    def load_slm(self, choice: DeviceChoice) -> None:
        from clag_server.models.torch_choose import ChannelScorer
        from clag_server.models.torch_device import choose_dtype
        from clag_server.models.torch_generate import Generator
        from clag_server.models.torch_slm import CausalModel

        settings = self._settings
        if settings.slm is None:
            return
        started_s = time.monotonic()
        batch_tokens = settings.choose_batch_tokens or choice.choose_batch_tokens
        try:
            dtype = choose_dtype(settings.dtype, choice.device)
            model = CausalModel(Path(settings.slm), choice.device, dtype)
            scorer = ChannelScorer(
                model,
                text_tokens=settings.choose_text_tokens,
                head_tokens=settings.choose_head_tokens,
                batch_tokens=batch_tokens,
                cache_bytes=settings.prefix_cache_mib << 20,
            )
            generator = Generator(
                model,
                slots=settings.slots or choice.slots,
                context_tokens=settings.context_tokens,
                prefill_tokens=settings.prefill_tokens or choice.prefill_tokens,
            )
            scorer.score(["ready"], [[("", "ready:")]], self._link.beat)
        except _LOAD_FAULTS as error:
            self._link.send(protocol.NotLoaded("slm", f"cannot load {settings.slm}: {error}"))
            return
        self._scorer, self._generator = scorer, generator
        took_s = time.monotonic() - started_s
        name = str(dtype).removeprefix("torch.")
        self._link.send(protocol.Loaded("slm", str(choice.device), name, took_s, batch_tokens))

    def run(self) -> None:
        """Serve until the line closes (the reader ends the process)."""
        while True:
            busy = self._generator is not None and self._generator.busy
            try:
                priority, _, frame = self._link.requests.get(block=not busy)
            except queue.Empty:
                self._step()
                continue
            self._handle(frame)
            # Waiting interactive work goes first; other work takes turns with generation.
            if priority > 0 and busy:
                self._step()

    def _handle(self, frame: Request) -> None:
        if isinstance(frame, protocol.Cancel):
            if self._generator is not None:
                self._generator.cancel(frame.id)
            return
        try:
            if isinstance(frame, protocol.Embed):
                self._embed(frame)
            elif isinstance(frame, protocol.ChooseBatch):
                self._choose(frame)
            else:
                self._generate(frame)
        except _REQUEST_FAULTS as error:
            self._report(frame.id, error)

    def _embed(self, frame: protocol.Embed) -> None:
        if self._embedder is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no embedder"))
            return
        started_s = time.perf_counter()
        vectors, tokens = self._embedder.embed(frame.texts, self._link.beat)
        rows, dim = vectors.shape
        data = vectors.astype("<f4", copy=False).tobytes()
        took_s = time.perf_counter() - started_s
        self._link.send(protocol.Vectors(frame.id, rows, dim, data, tokens, took_s))

    def _choose(self, frame: protocol.ChooseBatch) -> None:
        if self._scorer is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no language model"))
            return
        started_s = time.perf_counter()
        calls = self._scorer.score(frame.texts, frame.options, self._link.beat)
        took_s = time.perf_counter() - started_s
        self._link.send(
            protocol.Scores(
                frame.id,
                [call.scores for call in calls],
                [call.clipped for call in calls],
                [call.tokens_in for call in calls],
                took_s,
            )
        )

    def _generate(self, frame: protocol.Generate) -> None:
        if self._generator is None:
            self._link.send(protocol.Failed(frame.id, refused=False, reason="there is no language model"))
            return
        self._generator.submit(frame.id, frame.prompt, frame.grammar, frame.max_tokens, frame.priority)

    def _step(self) -> None:
        generator = self._generator
        if generator is None:
            return
        try:
            finished = generator.step()
        except _REQUEST_FAULTS as error:
            for request_id in generator.fail_all():
                self._report(request_id, error)
            return
        for one in finished:
            self._link.send(
                protocol.Text(
                    one.id, one.text, one.finished, one.tokens_in, one.tokens_out, round(one.compute_s, 6)
                )
            )
        self._link.beat()

    def _report(self, request_id: int, error: Exception) -> None:
        from clag_server.models.torch_device import is_out_of_memory, release_memory
        from clag_server.models.torch_generate import RefusedError
        from clag_server.models.torch_grammar import GrammarError

        refused = isinstance(error, (RefusedError, GrammarError))
        reason = str(error)
        if is_out_of_memory(error):
            reason = "out of memory"
            release_memory()
        self._link.send(protocol.Failed(request_id, refused, f"{type(error).__name__}: {reason}"[:2000]))


# What libraries raise for bad weights or for one bad request. Anything else ends the worker, which is restarted.
_LOAD_FAULTS = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, MemoryError)
_REQUEST_FAULTS = (ValueError, RuntimeError, KeyError, IndexError, TypeError, MemoryError)


def main() -> None:
    """Load the models and serve the inherited socket."""
    parser = argparse.ArgumentParser(description="CLAG's model worker; started by the server")
    parser.add_argument("--settings", required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    settings = WorkerSettings(**json.loads(arguments.settings))
    threading.excepthook = _end_process
    link = WorkerLink(socket.socket(fileno=arguments.fd))
    link.start()
    _serve(settings, link, lifeline.ready)


def _serve(settings: WorkerSettings, link: WorkerLink, say_ready: Callable[[], None]) -> None:
    import torch
    import transformers

    from clag_server.models.torch_device import choose_device

    transformers.utils.logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        choice = choose_device(settings.device)
    except RuntimeError as error:
        lifeline.fatal(f"no device {settings.device!r}: {error}")
    worker = _Worker(settings, link)
    worker.load_embedder(choice)
    say_ready()
    threading.Thread(target=worker.load_slm, args=(choice,), name="load slm", daemon=True).start()
    worker.run()


def _end_process(fault: threading.ExceptHookArgs) -> None:
    """A thread that ends by a fault takes the worker along: half a worker would answer nobody."""
    threading.__excepthook__(fault)
    os._exit(1)


if __name__ == "__main__":
    main()
