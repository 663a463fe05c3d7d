"""How it is put together: the `dsec` command."""
