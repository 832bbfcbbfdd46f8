"""Benchmarks: ratios in one run, each with one closing line `name: value (goal ...)`. No test asserts a time."""
