"""Metadata filters from the words of a question, and what to give up when they leave nothing; references to parts."""
