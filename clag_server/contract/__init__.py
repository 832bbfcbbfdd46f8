"""The contract as the server sees it: strict message classes, decoding that never fails, rules."""
