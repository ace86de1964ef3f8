"""What several tests share: the oracle, wire helpers, small checkpoints."""
