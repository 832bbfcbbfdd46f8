"""Limits of the contract that the schema's rules do not carry; `GetServerInfo` publishes them."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 << 20
"""Largest gRPC message in either direction."""

MAX_TEXT_BYTES = 32_768
"""Largest text of a memory or query; the same number stands in the schema."""

MAX_MEMORIES = 256
"""Largest `max_memories`; the same number stands in the schema."""

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
"""Page sizes above are coerced to it (AIP-158)."""

MAX_PAGE_BYTES = 3 << 20
"""A page is cut before its message comes near the message limit."""

MAX_FILTER_DEPTH = 8
MAX_FILTER_NODES = 128

MAX_CANDIDATES = 256
"""Clusters listed in a selection; the search space counts the rest."""

HITS_PER_FRAME_BYTES = 1 << 20
"""Hits are split over several frames of about this size."""

DEFAULT_CONTEXT_TOKENS = 1024
"""Budget of GetContext where the request has none."""

DEFAULT_ANSWER_TOKENS = 256
"""Length of an Answer where the request has none."""

MAX_QUERIES_IN_FLIGHT = 256
"""Queries of one RetrieveStream that are asked and not yet answered; its first frame tells."""

MAX_QUERY_BYTES = 256 << 10
"""One query of a RetrieveStream: with so many in flight, what waits for its turn stays within 64 MiB."""


def page_size(asked: int) -> int:
    """Page size to use: 0 is the default, more than the maximum is the maximum."""
    return min(asked, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE
