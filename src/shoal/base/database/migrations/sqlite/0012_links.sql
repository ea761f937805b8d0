-- The links of a page with URL and text, compressed; NULL unless the crawl stores them.
ALTER TABLE page ADD COLUMN outlinks BLOB;
