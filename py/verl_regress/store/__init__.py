"""What jobs share on the shared root: snapshots of verl, data sets, models, sessions, and what `make gc` removes of them."""
