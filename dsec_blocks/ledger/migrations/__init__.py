"""How a ledger written by any older DSec becomes one of this version (Alembic)."""
