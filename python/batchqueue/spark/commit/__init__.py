"""L2 and the ledger: one transaction for each epoch. Runs in the driver's commit process."""
