"""The only access to the machine: commands, files, and helper processes for drivers and libraries."""
