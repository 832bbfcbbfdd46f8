"""Make everything that is made from `proto/`: one command, the same bytes every time.

- `clients/python/src/clag`: message classes, stubs and types, without the validation options, so
  that no client needs a validation library. Server and client use this one tree.
- `clag_server/contract/clag.v1.binpb`: descriptors of our files with the options, from which the
  server makes the classes that it validates.
- `docs/contract.md`: the reference, from the comments.
- `clients/proto`: the `.proto` files without the validation options, for clients of other languages.

Usage: python tools/generate.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.contract_docs import reference
from tools.contract_paths import (
    CLIENT_PROTOS,
    PROTO_DIR,
    PYTHON_TREE,
    REFERENCE,
    ROOT,
    RULES_SET,
    buf,
    pins,
    tool,
)
from tools.fetch_validate import fetch
from tools.strip_rules import strip_rules

PACKAGE = "clag/v1/"
_PACKAGES = {
    "clag": "Code generated from the contract. Do not edit.",
    "clag/v1": "Messages and stubs of the package clag.v1. Do not edit.",
}


def generate(
    *,
    tree: Path = PYTHON_TREE,
    rules: Path = RULES_SET,
    docs: Path = REFERENCE,
    protos: Path = CLIENT_PROTOS,
) -> None:
    """Write all generated files.

    Args:
        tree: the Python package folder; what was in it is replaced.
        rules: the descriptor set with the validation options.
        docs: the reference page.
        protos: the folder of the `.proto` files without rules; those in it are replaced.

    Raises:
        SystemExit: if a generator fails.
    """
    fetch()
    copy_protos(protos)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        described = build(work)
        rules.parent.mkdir(parents=True, exist_ok=True)
        rules.write_bytes(_rules(described))
        docs.parent.mkdir(parents=True, exist_ok=True)
        docs.write_text(reference(_own(described)), encoding="utf-8")
        _python(described, work, tree)


def copy_protos(folder: Path) -> None:
    """Write the contract's files without the validation options, comments kept.

    Args:
        folder: where `clag/v1/*.proto` go; others of that name are removed.

    Raises:
        SystemExit: if buf cannot read what was written.
    """
    with tempfile.TemporaryDirectory() as name:
        fresh = Path(name) / PACKAGE
        fresh.mkdir(parents=True)
        for source in sorted((PROTO_DIR / PACKAGE).glob("*.proto")):
            (fresh / source.name).write_text(strip_rules(source.read_text(encoding="utf-8")), encoding="utf-8")
        buf("format", "--write", name)
        target = folder / PACKAGE
        if target.exists():
            shutil.rmtree(target)
        shutil.copytree(fresh, target)


def build(work: Path) -> FileDescriptorSet:
    """Compile `proto/` with comments.

    Args:
        work: a folder for the compiler's output.

    Returns:
        Our files and their imports; imports come before the files that use them.
    """
    output = work / "image.binpb"
    buf("build", "--as-file-descriptor-set", "-o", str(output))
    return FileDescriptorSet.FromString(output.read_bytes())


def _own(described: FileDescriptorSet) -> FileDescriptorSet:
    return FileDescriptorSet(file=[file for file in described.file if file.name.startswith(PACKAGE)])


def _rules(described: FileDescriptorSet) -> bytes:
    own = _own(described)
    for file in own.file:
        file.ClearField("source_code_info")
    return own.SerializeToString(deterministic=True)


def without_rules(described: FileDescriptorSet) -> FileDescriptorSet:
    """Return the contract as clients see it: no validation options, and no import of their schema."""
    plain = FileDescriptorSet()
    for file in described.file:
        if file.name.startswith("buf/"):
            continue
        copy = plain.file.add()
        copy.CopyFrom(file)
        if file.name.startswith(PACKAGE):
            # The validation options are unknown fields here, as no one registered them.
            copy.DiscardUnknownFields()
            kept = [name for name in copy.dependency if not name.startswith("buf/")]
            copy.ClearField("dependency")
            copy.dependency.extend(kept)
    return plain


def _python(described: FileDescriptorSet, work: Path, tree: Path) -> None:
    plain = without_rules(described)
    stripped = work / "plain.binpb"
    stripped.write_bytes(plain.SerializeToString(deterministic=True))
    output = work / "python"
    output.mkdir()
    pin = pins()["python"]
    command = [tool("uv"), "run", "--quiet", "--no-project", "--isolated", "--python", pin["version"]]
    command += [part for wanted in pin["requirements"] for part in ("--with", wanted)]
    command += ["python", str(ROOT / "tools" / "protoc_python.py"), str(stripped), str(output)]
    command += [file.name for file in plain.file if file.name.startswith(PACKAGE)]
    if subprocess.run(command, cwd=work, check=False).returncode != 0:
        raise SystemExit("the Python generators failed")
    for unused in output.glob("clag/v1/types_pb2_grpc.py*"):
        unused.unlink()  # the file declares no service
    for name, docstring in _PACKAGES.items():
        (output / name / "__init__.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    (output / "clag" / "py.typed").touch()
    if tree.exists():
        shutil.rmtree(tree)
    shutil.copytree(output / "clag", tree)


if __name__ == "__main__":
    generate()
