"""Images, compose file, chart, rules and dashboard."""
