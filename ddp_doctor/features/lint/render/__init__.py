"""The findings of ``lint`` on the screen and in the formats of other tools."""
