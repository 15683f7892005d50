"""The views of the page, its plots, and what it loads."""
