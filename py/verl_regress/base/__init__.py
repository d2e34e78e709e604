"""What everything else uses: errors, messages, paths of the shared root, locks, processes, names, and the documents that users write."""
