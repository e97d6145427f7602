"""Files of a run: their names, records, journals, the list of runs."""
