"""The settings that a report hands over, in the forms that people paste: a module for each, and what they share."""
