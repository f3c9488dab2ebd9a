"""Complaints of asyncio are looked for after every test."""

from __future__ import annotations

from tests.transport.helpers import no_complaints_of_asyncio

__all__ = ["no_complaints_of_asyncio"]
