"""Builds an attempt's command: activation, environment variables, `--cuda` and the session name."""
