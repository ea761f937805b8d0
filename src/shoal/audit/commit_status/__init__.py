"""Commit statuses: the verdict about a site, shown at a commit on GitHub, GitLab, Gitea or Forgejo."""
