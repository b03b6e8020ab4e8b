"""Text as values: quoting, strict JSON, secrets, terminal escapes. Imports nothing of ours."""
