"""Traffic like that of an account: when requests leave, what is in them, where they go, what came of them."""
