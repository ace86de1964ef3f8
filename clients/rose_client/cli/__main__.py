"""`python -m rose_client.cli`: the same as `rose`."""

from rose_client.cli.main import app

app()
