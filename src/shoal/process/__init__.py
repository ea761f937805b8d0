"""The processes of Shoal: controller, worker, child and renderer with their listening sockets, and crawls and analyses
in the caller's process."""
