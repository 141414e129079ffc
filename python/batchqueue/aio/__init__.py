"""`AsyncBatchQueue`: a queue whose producers and handlers run on event loops."""
