"""The `dsec` command and how the platform is put together."""
