"""The competence probe: bundled questions, how a language model is asked them, and what its answers earn it."""
