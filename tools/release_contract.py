"""Declare the contract as it is to be the released one, which later changes may only add to.

Run at releases only. The image holds the messages and services as clients see them, without comments and
without rules: a rule may be relaxed later, and clients do not compile against it.

Usage: python tools/release_contract.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.contract_paths import RELEASED_IMAGE, ROOT, buf
from tools.fetch_validate import fetch
from tools.generate import build, without_rules


def main() -> int:
    """Write the image, unless the contract breaks the one that is there."""
    fetch()
    target = str(RELEASED_IMAGE.relative_to(ROOT))
    if RELEASED_IMAGE.exists():
        buf("breaking", "proto", "--against", target, "--exclude-imports")
    with tempfile.TemporaryDirectory() as work:
        plain = without_rules(build(Path(work)))
    for file in plain.file:
        file.ClearField("source_code_info")
    RELEASED_IMAGE.write_bytes(plain.SerializeToString(deterministic=True))
    print(f"{target} is the released contract now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
