"""Pure decisions: profile, layout, plan, events, state machine, series. No I/O and no clock in here."""
