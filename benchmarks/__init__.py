"""What must be fast, measured with its peers in the same run on the same data."""
