"""Stands in for torch in a store process that no rank asks for anything."""
