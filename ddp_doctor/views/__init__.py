"""What several rules derive from several facts, worked out once a recording. No opinion stands here."""
