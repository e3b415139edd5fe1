"""How much memory a rank of the user's model needs: computed, and traced on tensors without memory."""
