"""ROSE: the engine half of the server. Token ids in, vectors out; it knows nothing of Triton or of text."""
