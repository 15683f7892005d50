"""How tests call a service."""

from contextlib import asynccontextmanager

import httpx
import pytest


@asynccontextmanager
async def client_of(app, **options):
    """A client that calls an application in this process."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", **options) as made:
        yield made


def with_key(key):
    return {"Authorization": f"Bearer {key}"}


def pdf(*pages):
    """The bytes of a PDF with these texts, one on each page."""
    made = pytest.importorskip("fpdf", reason="fpdf2, which writes PDFs, is not installed").FPDF()
    for text in pages:
        made.add_page()
        made.set_font("helvetica", size=12)
        made.multi_cell(0, text=text)
    return bytes(made.output())
