-- The links of a page with URL and text, compressed; only for crawls with `links`. Without `analyze`, `detail` is empty.
ALTER TABLE page_detail ADD COLUMN outlinks BYTEA;
