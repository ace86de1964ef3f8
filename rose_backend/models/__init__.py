"""Architectures for ragged batches, one file each; `registry.py` finds them by `model_type`."""
