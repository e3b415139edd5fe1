"""Fact classes that checks record, and the value types they hold. Data only: views and rules compute on them."""
