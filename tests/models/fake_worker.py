"""A worker process without models, for the client's tests: it answers by rules and misbehaves on request.

Texts decide: `slow ...` waits for the file RELEASE, `die` kills the process, `die once` the first one only, `die
aside` while another request is in the pass, `silent` never answers, `short` loses
a vector, `nan` gives NaN, `fail` fails, `refuse` refuses, `fat` says that the worker has 900 MiB and never answers.
A vector is (number of characters, position in batch). Every request is noted in the file LOG, in the order in which
the worker took it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import numpy as np

from clag_server.children import lifeline
from clag_server.models import protocol
from clag_server.models.worker_marks import PassMarks


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    marks = PassMarks(Path(sys.argv[sys.argv.index("--marks") + 1]))
    folder = Path(os.environ["FAKE_WORKER_FOLDER"])
    if (folder / "no-start").exists():
        sys.exit(3)
    if (folder / "no-slm").exists():
        slm: protocol.Frame = protocol.NotLoaded("slm", "cannot load it: no such layer")
    else:
        slm = protocol.Loaded("slm", "cpu", "float32", 0.1, 1000)
    line.sendall(protocol.encode(protocol.Loaded("embedder", "cpu", "float32", 0.1, 100)))
    line.sendall(protocol.encode(slm))
    lifeline.progress("pretending to load")
    lifeline.ready()
    while True:
        frame = protocol.decode(read(line, struct.unpack(">I", read(line, 4))[0]))
        for piece in pieces_of(frame):
            line.sendall(protocol.encode(piece))
        aside = "die aside" in getattr(frame, "texts", [])
        with marks.during([0 if aside else frame.id]):  # type: ignore[union-attr]
            answer = handle(frame, folder)
            if answer is not None:
                line.sendall(protocol.encode(answer))
            while hangs(frame):
                time.sleep(60)


def pieces_of(frame: protocol.Frame) -> list[protocol.Frame]:
    if not isinstance(frame, protocol.Generate) or not frame.streamed:
        return []
    words = frame.prompt.upper().split(" ")
    return [protocol.Piece(frame.id, word + (" " if i < len(words) - 1 else "")) for i, word in enumerate(words)]


def hangs(frame: protocol.Frame) -> bool:
    texts = [frame.prompt] if isinstance(frame, protocol.Generate) else getattr(frame, "texts", [])
    return "silent" in texts or "fat" in texts


def handle(frame: protocol.Frame, folder: Path) -> protocol.Frame | None:
    texts = [frame.prompt] if isinstance(frame, protocol.Generate) else getattr(frame, "texts", [])
    with (folder / "log").open("a") as log:
        log.write(json.dumps([type(frame).__name__, getattr(frame, "priority", None), texts]) + "\n")
    if any(text.startswith("slow") for text in texts):
        while not (folder / "release").exists():
            time.sleep(0.005)
    once = folder / "died"
    if "die" in texts or "die aside" in texts or ("die once" in texts and not once.exists()):
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if "fat" in texts:
        return protocol.Beat(rss_bytes=900 << 20, prefix_hits=3, prefix_misses=2)
    if "silent" in texts or isinstance(frame, protocol.Cancel):
        return None
    if "fail" in texts or "refuse" in texts:
        return protocol.Failed(frame.id, "refuse" in texts, "told to")  # type: ignore[union-attr]
    if isinstance(frame, protocol.Embed):
        rows = np.array([[len(text), i] for i, text in enumerate(frame.texts)], dtype="<f4")
        if "nan" in texts:
            rows[0, 0] = np.nan
        if "short" in texts:
            rows = rows[:-1]
        return protocol.Vectors(frame.id, len(rows), 2, rows.tobytes(), 1, 0.0)
    if isinstance(frame, protocol.ChooseBatch):
        scores = [[-float(len(head)) for _, head in call] for call in frame.options]
        scores = [one[:-1] if text == "few scores" else one for one, text in zip(scores, texts, strict=True)]
        return protocol.Scores(frame.id, scores, [False] * len(texts), [1] * len(texts), 0.0)
    if isinstance(frame, protocol.Generate):
        return protocol.Text(frame.id, frame.prompt.upper(), True, 1, 1, 0.0)
    return None


def read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data


if __name__ == "__main__":
    main()
