"""Files of analyses: in a folder or an S3-compatible store."""
