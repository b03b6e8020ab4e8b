"""The REST API: a front end like the command line, with the same use cases (docs/api.md)."""
