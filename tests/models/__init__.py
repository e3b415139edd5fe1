"""Models as users write them, for ``--model tests.models.NAME:FACTORY``: healthy ones, and planted defects."""
