"""Keeps a scheduler running with systemd or cron (docs/service.md)."""
