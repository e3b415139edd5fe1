"""Why a job failed: from the evidence of its output and dumps to causes and culprits, in one order of reasoning."""
