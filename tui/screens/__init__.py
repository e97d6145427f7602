"""One module for each screen. A screen asks the engine and arranges widgets; pure code lies beside it in `tui`."""
