"""How tests call a service."""

from contextlib import asynccontextmanager

import httpx


@asynccontextmanager
async def client_of(app, **options):
    """A client that calls an application in this process."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", **options) as made:
        yield made


def with_key(key):
    return {"Authorization": f"Bearer {key}"}
