"""Python client of CLAG, a memory sidecar for small-language-model agents.

`AsyncClient` for asyncio, `Client` for everything else. Values are the generated messages of `clag.v1`, which
carry their documentation; `NewMemory` is a plain dataclass for what is sent most.
"""

from clag_client.aio import AsyncClient
from clag_client.answers import SyncPendingQuery, SyncRetrievalStream
from clag_client.clusters import EditOptions
from clag_client.connect import Tls
from clag_client.errors import ClagError, FieldViolation, SourceError
from clag_client.ingestion import Ingestion
from clag_client.outcomes import Outcome
from clag_client.retrieval_stream import PendingQuery, RetrievalStream
from clag_client.retry import RetryPolicy
from clag_client.sync import Client, SyncIngestion
from clag_client.values import NewMemory, RetrieveOptions

__all__ = [
    "AsyncClient",
    "ClagError",
    "Client",
    "EditOptions",
    "FieldViolation",
    "Ingestion",
    "NewMemory",
    "Outcome",
    "PendingQuery",
    "RetrievalStream",
    "RetrieveOptions",
    "RetryPolicy",
    "SourceError",
    "SyncIngestion",
    "SyncPendingQuery",
    "SyncRetrievalStream",
    "Tls",
]
