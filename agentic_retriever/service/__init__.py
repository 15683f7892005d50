"""The service: HTTP, a page, keys. ``agentic-retriever serve`` starts it; ``app.create_app`` gives it as ASGI.

Nothing is imported here, so that commands about keys need not load what answers questions.
"""
