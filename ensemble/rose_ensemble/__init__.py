"""The CPU half: checkpoint files, templates, tokenization, and the model folders Triton loads."""
