"""What a run keeps on disk: paths, records, journals."""
