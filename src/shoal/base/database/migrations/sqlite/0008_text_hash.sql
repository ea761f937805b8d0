-- A hash of the visible text, to find pages with the same text. NULL for pages stored before there was one.
ALTER TABLE page ADD COLUMN text_hash INTEGER;
