"""What several rules derive from several facts, worked out once a recording. This package holds no opinions."""
