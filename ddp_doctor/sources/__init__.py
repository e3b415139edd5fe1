"""The only doors to the machine: commands, files, and helper processes for drivers and libraries."""
