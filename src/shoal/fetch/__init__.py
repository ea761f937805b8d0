"""One page: asked for through egress, decoded, read. Tries once; a retry is the frontier's business."""
