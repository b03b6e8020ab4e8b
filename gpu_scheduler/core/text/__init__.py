"""Text as values: quoting, strict JSON, secrets, terminal escapes. Imports no other room."""
