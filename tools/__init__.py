"""Commands for those who change CLAG itself: generation, checks and releases of the contract."""
