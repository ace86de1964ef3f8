"""Texts of the hard cases and their right values: all-MiniLM-L6-v2, fp32, CPU, printed to five decimals."""

from __future__ import annotations

from collections.abc import Mapping

HARBOUR = "Tides turn twice a day at the harbour wall."

HEADS: Mapping[str, tuple[float, float, float, float]] = {
    HARBOUR: (0.05134, 0.04475, 0.12573, 0.05006),
    "tea": (-0.06760, -0.00774, 0.01127, 0.02277),
    "": (-0.11884, 0.04830, -0.00255, -0.01101),
    "[CLS] tea [SEP] pot": (-0.02249, 0.02925, 0.00492, 0.02030),
}
"""First four elements of the unit vector of a text."""

BLANKS = ("", " ", "\n\t", "\0", "\u200b")
"""Texts without any token of their own: only [CLS] [SEP] remain of each."""

TEA_IDS = (101, 5572, 102)
POT_IDS = (101, 8962, 102)

MAX_LENGTH = 256
VOCAB_SIZE = 30522
DIM = 384
