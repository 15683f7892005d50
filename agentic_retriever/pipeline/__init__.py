"""A question's way through the router: ``query`` has its steps, read from top to bottom; the rest is what they use."""
