"""The runner of the Python client, in both its faces."""
