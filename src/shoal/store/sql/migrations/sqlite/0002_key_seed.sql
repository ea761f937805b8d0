-- What the keys of a crawl are seeded with, if not with its number: a crawl that came from another store brings the seed
-- of its keys along, for most of them are all that is left of their URLs.
ALTER TABLE crawl ADD COLUMN key_seed INTEGER;
