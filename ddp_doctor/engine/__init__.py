"""The engine: planning (plan), running probes (collect), applying rules (diagnose) and the verdict (verdict)."""
