"""What the rooms and their stores promise, tried on every driver."""
