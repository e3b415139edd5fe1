"""What runs (plan), running it (collect), judging it (diagnose) and the verdict (verdict)."""
