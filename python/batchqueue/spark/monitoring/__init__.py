"""Readers of the ledger. They run wherever the store can be read: mostly in the driver."""
