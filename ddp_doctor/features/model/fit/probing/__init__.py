"""The memory that a rank of the user's model needs: computed, and traced on fake tensors."""
