"""Frames between the server and its model worker: 4 bytes of length (big endian), then one msgpack map.

Typed dataclasses on both sides; the map's `t` names the class. A frame is at most 64 MiB. Both ends are the same
version of this package, so there is no negotiation: an unknown frame is a fault.
"""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "HEADER_BYTES",
    "MAX_FRAME_BYTES",
    "Beat",
    "Cancel",
    "ChooseBatch",
    "Embed",
    "Failed",
    "Frame",
    "FrameError",
    "Generate",
    "Loaded",
    "NotLoaded",
    "Piece",
    "Progress",
    "Scores",
    "Text",
    "Vectors",
    "decode",
    "encode",
    "frame_length",
]

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024


class FrameError(ValueError):
    """Bytes on the worker's socket that are not a frame of this version."""


@dataclass(frozen=True, slots=True)
class Embed:
    """To the worker: embed these texts."""

    id: int
    priority: int
    texts: list[str]


@dataclass(frozen=True, slots=True)
class ChooseBatch:
    """To the worker: score these calls. `options[i]` holds (key, head) pairs of `texts[i]`."""

    id: int
    priority: int
    texts: list[str]
    options: list[list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Generate:
    """To the worker: continue this prompt."""

    id: int
    priority: int
    prompt: str
    grammar: str | None
    max_tokens: int
    streamed: bool = False
    """Send the text in pieces as it is written, then the whole."""
    ending: str = ""
    """As long as what a begun text may lack to its end. When only room for it is left, the text is ended."""
    alone: bool = False
    """No other generation may share its passes: a worker ended on it, or on one of those that it ran with."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the worker: nobody waits for this request any more."""

    id: int
    priority: int
    """The request's own: the worker sorts by it, and a cancellation must not overtake its request."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """From the worker: this model answers now."""

    model: str
    """`embedder` or `slm`."""
    device: str
    dtype: str
    load_s: float
    batch_tokens: int
    """Padded tokens of one forward pass, as the device suggests."""
    slots: int = 1
    """Generations that run at the same time."""


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """From the worker: this model cannot be loaded; a restart will not help."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class Beat:
    """From the worker: still computing. Sent about once a second while there is work."""

    rss_bytes: int = 0
    """Memory of the worker; 0 where the system does not say."""
    prefix_hits: int = 0
    """Heads and prompt beginnings that were kept, since the worker started."""
    prefix_misses: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """From the worker: how far the load of a model is, after the worker said that it is ready."""

    model: str
    step: str


@dataclass(frozen=True, slots=True)
class Vectors:
    """From the worker: the answer to `Embed`; `data` is row-major little-endian float32 of shape (rows, dim)."""

    id: int
    rows: int
    dim: int
    data: bytes
    tokens_in: int
    compute_s: float
    """Seconds of its own passes, those of more urgent work between them left out."""

    def array(self) -> NDArray[np.float32]:
        """Return the vectors, shape (rows, dim).

        Raises:
            FrameError: The bytes do not have the shape that the frame claims.
        """
        flat = np.frombuffer(self.data, dtype="<f4")
        if flat.size != self.rows * self.dim:
            raise FrameError(f"{flat.size} numbers for {self.rows} x {self.dim}")
        return flat.reshape(self.rows, self.dim).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Scores:
    """From the worker: the answer to `ChooseBatch`, aligned to its calls."""

    id: int
    scores: list[list[float]]
    clipped: list[bool]
    tokens_in: list[int]
    compute_s: float


@dataclass(frozen=True, slots=True)
class Text:
    """From the worker: the answer to `Generate`."""

    id: int
    text: str
    finished: bool
    tokens_in: int
    tokens_out: int
    compute_s: float
    batch: float = 1.0
    """Mean number of generations that shared its passes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """From the worker: text that a streamed generation adds."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """From the worker: this request has no answer."""

    id: int
    refused: bool
    """True: the request is at fault, do not retry."""
    reason: str


Frame = (
    Embed | ChooseBatch | Generate | Cancel | Loaded | NotLoaded | Progress | Beat | Vectors | Scores | Piece | Text
    | Failed
)  # fmt: skip

_CLASSES: Final[dict[str, type[Frame]]] = {
    kind.__name__: kind
    for kind in (
        Embed, ChooseBatch, Generate, Cancel, Loaded, NotLoaded, Progress, Beat, Vectors, Scores, Piece, Text,
        Failed,
    )
}  # fmt: skip


def encode(frame: Frame) -> bytes:
    """Return the frame's bytes, header included.

    Raises:
        FrameError: The frame is larger than the limit, or a text is not valid Unicode.
    """
    body: dict[str, object] = {"t": type(frame).__name__}
    for one in dataclasses.fields(frame):
        body[one.name] = getattr(frame, one.name)
    try:
        packed: bytes = msgpack.packb(body)
    except UnicodeEncodeError as error:
        raise FrameError(f"a text is not valid Unicode: {error.reason}") from error
    if len(packed) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(packed)} bytes, the limit is {MAX_FRAME_BYTES}")
    return struct.pack(">I", len(packed)) + packed


def frame_length(header: bytes) -> int:
    """Return the length of the body that follows this header.

    Raises:
        FrameError: Not a header, or past the limit.
    """
    if len(header) != HEADER_BYTES:
        raise FrameError(f"header of {len(header)} bytes")
    length = int(struct.unpack(">I", header)[0])
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {length} bytes, the limit is {MAX_FRAME_BYTES}")
    return length


def decode(body: bytes) -> Frame:
    """Return the frame of a body (without header).

    Raises:
        FrameError: Not a frame of this version.
    """
    try:
        values = msgpack.unpackb(body, use_list=True)
        kind = _CLASSES[values.pop("t")]
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.exceptions.UnpackException) as error:
        raise FrameError(f"not a frame: {error!r}") from error
