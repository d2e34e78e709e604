"""What everything else uses: errors, messages, paths of the shared root, locks, names, and the documents that users write."""
