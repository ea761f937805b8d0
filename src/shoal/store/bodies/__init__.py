"""Where kept bodies lie: a folder, or an object store. Answers `pages.bodies.BodyStore`."""
