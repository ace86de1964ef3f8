"""The `rose` command; one file per group of subcommands."""
