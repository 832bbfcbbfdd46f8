"""Write the Python client code; run by `generate.py` in the pinned, isolated environment.

The generators must be older than the run time in use (protobuf promises that newer run times read
older generated code, not the reverse), so this file imports nothing of the project.

Usage: protoc_python.py DESCRIPTOR_SET OUTPUT_FOLDER FILE.proto...
"""

from __future__ import annotations

import sys

from grpc_tools import protoc  # type: ignore[import-not-found]  # only in the isolated environment


def main(descriptor_set: str, output: str, files: list[str]) -> int:
    """Run protoc over a descriptor set that has no validation options.

    Args:
        descriptor_set: path of a serialized google.protobuf.FileDescriptorSet.
        output: folder that the package tree is written into.
        files: names of the .proto files in the set.

    Returns:
        protoc's exit status.
    """
    outputs = [f"--{kind}_out={output}" for kind in ("python", "grpc_python")]
    stubs = [f"--{kind}_out=quiet:{output}" for kind in ("mypy", "mypy_grpc")]
    command = ["protoc", f"--descriptor_set_in={descriptor_set}", *outputs, *stubs, *files]
    return int(protoc.main(command))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
