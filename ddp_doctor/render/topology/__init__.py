"""The topology of a machine on the screen, in the JSON report and as a picture."""
