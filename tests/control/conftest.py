"""Fixtures of whole nodes."""

from __future__ import annotations

from tests.node.fixtures import no_complaints_of_asyncio, quick, swarm, swarm_of

__all__ = ["no_complaints_of_asyncio", "quick", "swarm", "swarm_of"]
