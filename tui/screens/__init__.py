"""One module for each screen. A screen asks the engine and arranges widgets; what is pure lies beside it in `tui`."""
