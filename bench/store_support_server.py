"""The server of the store's benchmarks: `clag serve`'s, with what no setting offers.

Run as `python -m bench.store_support_server KNOBS` (JSON of `bench.store_support.Knobs`) with settings from the
environment. Embeddings get the length of a real model's, so that rows have their real size; the vector index gets
small batches, so that kills land in writes, flushes and rebuilds often; the wall clock can be set.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path
from unittest import mock

from clag_server import server
from clag_server.memory.system import MemorySystem
from clag_server.models import factory
from clag_server.models.script import ScriptFile
from clag_server.models.scripted import ScriptedEmbedder, ScriptedSlm
from clag_server.vectors.settings import IndexSettings


def main() -> int:
    knobs = json.loads(sys.argv[1])

    def scripted(path: Path) -> tuple[ScriptedEmbedder, ScriptedSlm]:
        script = ScriptFile(path)
        return ScriptedEmbedder(script, knobs["dim"]), ScriptedSlm(script)

    def now_ns() -> int:
        offset = Path(knobs["clock"]).read_text("utf-8") if knobs["clock"] else "0"
        return time.time_ns() + int(float(offset) * 1e9)

    with (
        mock.patch.dict(MemorySystem.__init__.__kwdefaults__ or {}, {"now_ns": now_ns}),
        mock.patch.object(factory, "from_file", scripted),
        mock.patch.object(server, "IndexTuning", partial(IndexSettings, **knobs["index"])),
    ):
        return server.main()


if __name__ == "__main__":
    sys.exit(main())
