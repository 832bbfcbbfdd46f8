"""`python -m clag_eval` is `clag-eval`."""

from clag_eval.cli import main

raise SystemExit(main())
