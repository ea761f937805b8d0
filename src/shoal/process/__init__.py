"""What runs in a process: controller, worker, child and renderer with what they listen on, and a crawl or an analysis
in the process of the caller."""
