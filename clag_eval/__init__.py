"""`clag-eval`: measures retrieval and answers of a CLAG server on public data, through the public contract only.

Nothing here imports the server; `serving` starts one as a child process where no address is given. One run puts
the methods side by side on the same memories and questions, and its JSON file is what reports, plots and
comparisons are made from. How to use it: docs/evaluation.md.
"""
