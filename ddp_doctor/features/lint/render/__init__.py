"""The findings of ``lint`` on the screen and in the forms that other tools read."""
