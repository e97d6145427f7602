"""The terminal app: screens, widgets, and the fold of a supervisor's messages. It holds nothing that a run needs."""
