"""Check the contract: style, format, generated files, and that nothing released was broken.

Exit status 0 when all is well; 1 with the findings otherwise.

Usage: python tools/check_contract.py
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.contract_paths import (
    CLIENT_PROTOS,
    PYTHON_TREE,
    REFERENCE,
    RELEASED_IMAGE,
    ROOT,
    RULES_SET,
    buf,
)
from tools.fetch_validate import fetch
from tools.generate import generate


def main() -> int:
    """Run all checks and print what each found."""
    fetch()
    buf("lint")
    buf("format", "--diff", "--exit-code")
    stale = stale_files()
    for path in stale:
        print(f"{path} is not what proto/ gives; run: make generate")
    if not RELEASED_IMAGE.exists():
        print(f"{RELEASED_IMAGE.relative_to(ROOT)} is missing; run: python tools/release_contract.py")
        return 1
    buf("breaking", "proto", "--against", str(RELEASED_IMAGE.relative_to(ROOT)), "--exclude-imports")
    if stale:
        return 1
    print("contract: style, format, generated files and compatibility are in order")
    return 0


def stale_files() -> list[str]:
    """Generate everything again elsewhere and compare.

    Returns:
        Paths, relative to the root, of files that differ, are missing or are left over.
    """
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name)
        tree, rules, docs = fresh / "clag", fresh / RULES_SET.name, fresh / REFERENCE.name
        protos = fresh / "proto"
        generate(tree=tree, rules=rules, docs=docs, protos=protos)
        pairs = [(RULES_SET, rules), (REFERENCE, docs)]
        for old, new in ((PYTHON_TREE, tree), (CLIENT_PROTOS / "clag", protos / "clag")):
            pairs += [(old / path, new / path) for path in sorted(_files(old) | _files(new))]
        return [str(old.relative_to(ROOT)) for old, new in pairs if not _same(old, new)]


def _files(folder: Path) -> set[Path]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder) for path in found}


def _same(old: Path, new: Path) -> bool:
    return old.exists() and new.exists() and filecmp.cmp(old, new, shallow=False)


if __name__ == "__main__":
    sys.exit(main())
