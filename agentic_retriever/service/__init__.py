"""The service: HTTP, a page, keys. Nothing is imported here, so that commands about keys load little."""
