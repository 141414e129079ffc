"""What you declare: the job, its steps, the options of a write. Made in the driver; pickles."""
