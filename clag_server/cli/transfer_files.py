"""Files of exported rows: JSON Lines (also gzipped) and Parquet.

A line is the protobuf JSON of one `ExportRecord`. A Parquet row has columns to look at and the whole record in
`record`; its embedding is a column of its own, so that other programs find vectors as vectors.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from clag.v1 import admin_service_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from clag_server.cli.errors import CliError, ExitCode

__all__ = ["FORMATS", "FileRow", "UnreadableFile", "line_of", "read_rows", "suffix_of", "write_parquet"]

FORMATS: Final = (".jsonl", ".jsonl.gz", ".parquet")
MAX_LINE_BYTES: Final = 8 << 20
"""Longest line that is read: a memory of 32 KiB with an embedding of 4,096 numbers has about 100 KiB."""

_PARQUET_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row.

    Attributes:
        line: Its line (or row) number, from 1.
        record: Its record; empty when it is bad.
        error: What is wrong with it, "" for nothing.
        item: Its number from 1 where the whole document is one line, else 0.
    """

    line: int
    record: pb.ExportRecord
    error: str = ""
    item: int = 0


class UnreadableFile(CliError):
    """A file that cannot be read, or not to its end; the rows before that were given.

    Args:
        path: The file.
        reason: What is wrong, e.g. "it is cut off".
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}", ExitCode.USAGE)


class _CutOff(Exception):
    """A last line that ends in the middle."""

    def __init__(self, line: int) -> None:
        super().__init__(f"it is cut off in line {line:,}")


def suffix_of(path: Path) -> str:
    """Return the format of a file by its name. Raises CliError."""
    for suffix in sorted(FORMATS, key=len, reverse=True):
        if path.name.endswith(suffix):
            return suffix
    raise CliError(f"{path}: the name must end in {', '.join(FORMATS)}", ExitCode.USAGE)


def line_of(record: pb.ExportRecord) -> bytes:
    """Return a record as a line."""
    text = json_format.MessageToJson(record, indent=None, preserving_proto_field_name=True)
    return text.encode() + b"\n"


def read_rows(path: Path) -> Iterator[FileRow]:
    """Read the rows of a file.

    Raises:
        UnreadableFile: It cannot be read, or not to its end; what can be was given before.
        CliError: It is of another kind, or needs what is not installed.
    """
    suffix = suffix_of(path)
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path)
            return
        with path.open("rb") as file:
            source = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if suffix.endswith(".gz") else file
            yield from _lines(path, source)
    except gzip.BadGzipFile as error:
        raise UnreadableFile(path, "it is no sound gzip file") from error
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error)) from error
    except EOFError as error:
        raise UnreadableFile(path, "it is cut off") from error
    except zlib.error as error:
        raise UnreadableFile(path, "it is damaged") from error
    except _CutOff as error:
        raise UnreadableFile(path, str(error)) from error


def write_parquet(records: Iterable[pb.ExportRecord], target: Path) -> None:
    """Write records as Parquet, a row group for every thousand."""
    arrow, parquet = _pyarrow()
    schema = _schema(arrow)
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        rows: list[dict[str, Any]] = []
        for record in records:
            rows.append(_columns(record))
            if len(rows) >= _PARQUET_ROWS:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
                rows = []
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))


def _lines(path: Path, file: BinaryIO | io.BufferedIOBase) -> Iterator[FileRow]:
    from clag_server.foreign import container_of

    number = 0
    while raw := file.readline(MAX_LINE_BYTES):
        number += 1
        if number == 1 and (kind := container_of(raw[:16])):
            raise CliError(f"{path} looks like {kind}, its name says otherwise", ExitCode.USAGE)
        whole = raw.endswith(b"\n") or len(raw) < MAX_LINE_BYTES
        while not raw.endswith(b"\n") and len(raw) >= MAX_LINE_BYTES:
            raw = file.readline(MAX_LINE_BYTES)
        if not whole:
            yield FileRow(number, pb.ExportRecord(), f"is longer than {MAX_LINE_BYTES} bytes")
        elif raw.strip():
            yield _parsed(number, raw)


def _parsed(number: int, raw: bytes) -> FileRow:
    """Read one line. Raises _CutOff for an object that ends in its middle, as the file does."""
    line = raw.removeprefix(b"\xef\xbb\xbf")
    wrong, is_json = "", True
    if line.lstrip().startswith(b"{"):  # a list or a text would be taken for names of fields
        try:
            return FileRow(number, json_format.Parse(line.decode(), pb.ExportRecord(), ignore_unknown_fields=True))
        except json_format.ParseError as error:
            wrong = f"is no exported record: {error}"
        except UnicodeDecodeError:
            is_json = False
    try:
        if not isinstance(json.loads(line.decode()), dict):
            wrong = "is not a JSON object"
    except UnicodeDecodeError as error:
        wrong = f"is not UTF-8 (byte {error.start + 1})"
    except json.JSONDecodeError as error:
        wrong, is_json = f"is not JSON: {error.msg} (column {error.colno})", False
    except RecursionError:
        wrong = "is nested too deeply"
    except ValueError:
        wrong = "holds a number of too many digits"
    if not is_json and line.lstrip().startswith(b"{") and not line.endswith(b"\n"):
        raise _CutOff(number)
    return FileRow(number, pb.ExportRecord(), wrong)


def _parquet_rows(path: Path) -> Iterator[FileRow]:
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        if "record" not in file.schema_arrow.names:
            raise CliError(f'{path} has no column "record": it is no export of this program', ExitCode.USAGE)
        columns = [name for name in ("record", "embedding") if name in file.schema_arrow.names]
        number = 0
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield _from_columns(number, row)
    except arrow.ArrowInvalid as error:
        raise UnreadableFile(path, f"it is no sound Parquet file: {error}") from error


def _from_columns(number: int, row: dict[str, Any]) -> FileRow:
    try:
        record = pb.ExportRecord.FromString(row["record"] or b"")
    except DecodeError:
        return FileRow(number, pb.ExportRecord(), 'column "record" is no exported record')
    if record.HasField("memory") and row.get("embedding"):
        record.memory.embedding.extend(row["embedding"])
    return FileRow(number, record)


def _columns(record: pb.ExportRecord) -> dict[str, Any]:
    kind = record.WhichOneof("record") or ""
    memory = record.memory if kind == "memory" else None
    columns: dict[str, Any] = {
        "kind": kind,
        "id": record.namespace.namespace if kind == "namespace" else record.cluster.cluster_id,
        "title": record.cluster.title if kind == "cluster" else None,
        "embedding": None,
    }
    if memory is not None:
        columns.update(
            id=memory.memory_id,
            text=memory.text,
            speaker=memory.speaker,
            session_id=memory.session_id,
            cluster_id=memory.cluster_id,
            tags=list(memory.tags),
            event_time=memory.event_time.ToNanoseconds() // 1000,
            embedding=list(memory.embedding) or None,
        )
        stripped = pb.ExportRecord()
        stripped.CopyFrom(record)
        stripped.memory.ClearField("embedding")
        record = stripped
    columns["record"] = record.SerializeToString()
    return columns


def _schema(arrow: Any) -> Any:
    return arrow.schema(
        [
            ("kind", arrow.string()),
            ("id", arrow.string()),
            ("title", arrow.string()),
            ("text", arrow.string()),
            ("speaker", arrow.string()),
            ("session_id", arrow.string()),
            ("cluster_id", arrow.string()),
            ("tags", arrow.list_(arrow.string())),
            ("event_time", arrow.timestamp("us", tz="UTC")),
            ("embedding", arrow.list_(arrow.float32())),
            ("record", arrow.binary()),
        ]
    )


def _pyarrow() -> tuple[Any, Any]:
    """Import pyarrow, which the embedded index brings along. Raises CliError."""
    try:
        pyarrow = importlib.import_module("pyarrow")  # it has no types
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise CliError("Parquet needs pyarrow: pip install pyarrow, or use .jsonl", ExitCode.USAGE) from error
    return pyarrow, parquet
