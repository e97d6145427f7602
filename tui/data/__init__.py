"""Data behind the screens. No widgets."""
