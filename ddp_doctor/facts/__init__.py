"""What checks record: every fact class and the value types it holds. Data alone; views and rules compute on it."""
