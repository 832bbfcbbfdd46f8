"""The system of record: one transaction here is the truth; every index is derived from it and can be rebuilt."""
