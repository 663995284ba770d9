"""Switching live volumes: nothing that was acknowledged is lost."""
