"""CLAG: a memory sidecar for small-language-model agents."""

import os

__version__ = "0.1.0"

# Before numpy is imported. The server's products are a few megabytes: a second thread gains nothing on an idle
# machine, and on a busy one it spins while it waits for a core (2.9 ms instead of 0.2 ms for 1,400 centroids).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
