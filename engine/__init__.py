"""The engine launches, relays and remembers. It never imports textual, rich or torch."""

__version__ = "0.1.0"
