"""The service: HTTP, a page, keys; ``agentic-retriever serve`` starts it, :func:`create_app` is it as ASGI."""

from agentic_retriever.service.app import create_app
from agentic_retriever.service.settings import Caller, Role, ServiceSettings

__all__ = ["Caller", "Role", "ServiceSettings", "create_app"]
