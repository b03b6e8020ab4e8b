"""Scheduling decisions, as functions that take facts and return actions."""
