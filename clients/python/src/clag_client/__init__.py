"""Python client of CLAG."""
