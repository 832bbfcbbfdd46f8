"""Tests of `clag-eval`."""
