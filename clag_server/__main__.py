"""`python -m clag_server` is the same as `clag`."""

from clag_server.cli.main import main

if __name__ == "__main__":
    main()
