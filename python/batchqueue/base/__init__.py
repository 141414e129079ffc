"""The basics that every room of the package uses: words, checks, signals, threads, the log."""
