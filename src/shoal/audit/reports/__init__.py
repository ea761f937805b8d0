"""Reports about one analysis: HTML, JSON, JUnit XML, SARIF, Markdown and annotations of GitHub Actions."""
