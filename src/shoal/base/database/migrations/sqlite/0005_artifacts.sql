-- The files that an analyzer left, as JSON: name and size of each.
ALTER TABLE analyzer_outcome ADD COLUMN artifacts TEXT NOT NULL DEFAULT '[]';
