"""Values that several rules derive from several facts, computed once per recording, without evaluating them."""
