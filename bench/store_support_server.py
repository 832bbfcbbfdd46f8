"""The server of the store's benchmarks: `clag serve`'s, with what no setting offers.

Run as `python -m bench.store_support_server KNOBS` (JSON of `bench.store_support.Knobs`) with settings from the
environment. Embeddings get the length of a real model's, so that rows have their real size; the vector index gets
small batches, so that kills land in writes, flushes and rebuilds often.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from unittest import mock

from clag_server import server
from clag_server.models import factory
from clag_server.models.script import ScriptFile
from clag_server.models.scripted import ScriptedEmbedder, ScriptedSlm
from clag_server.vectors import index
from clag_server.vectors.settings import IndexSettings


def main() -> int:
    knobs = json.loads(sys.argv[1])

    def scripted(path: Path) -> tuple[ScriptedEmbedder, ScriptedSlm]:
        script = ScriptFile(path)
        return ScriptedEmbedder(script, knobs["dim"]), ScriptedSlm(script)

    with (
        mock.patch.object(factory, "from_file", scripted),
        mock.patch.object(index, "IndexSettings", partial(IndexSettings, **knobs["index"])),
    ):
        return server.main()


if __name__ == "__main__":
    sys.exit(main())
