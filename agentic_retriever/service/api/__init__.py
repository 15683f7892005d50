"""Paths beside the native ones: those of existing clients, health and figures."""
