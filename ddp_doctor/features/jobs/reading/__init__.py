"""A job's output, as launchers, schedulers and containers leave it: text to facts."""
