"""Tables of the field's facts and the project's thresholds, each row with its source."""
