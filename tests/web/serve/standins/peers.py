"""Stands in for the protocol class that looks up peers."""

from uvicorn.protocols.http.h11_impl import H11Protocol as GuardedProtocol

__all__ = ["GuardedProtocol"]
