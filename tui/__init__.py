"""The terminal app: screens, widgets, and the fold of what a run's supervisor sends. It holds nothing that a run needs."""
