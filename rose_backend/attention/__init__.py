"""Attention over ragged batches: one interface, one file per backend."""
