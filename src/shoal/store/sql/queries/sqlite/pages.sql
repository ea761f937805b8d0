-- name: insert_pages
-- Keep a page, unless it is there.
INSERT INTO page (crawl, key, chk, url, final_url, status, depth, parent, content_type, encoding, bytes, title, description,
                  canonical, robots, lang, h1, word_count, content_hash, links_internal, links_external,
                  redirects, fetched_at, duration_ms, attempt, rendered, error_code, error_message, data,
                  body_file, body_offset, body_length, etag, last_modified, links)
VALUES (:crawl, :key, :chk, :url, :final_url, :status, :depth, :parent, :content_type, :encoding, :bytes, :title,
        :description, :canonical, :robots, :lang, :h1, :word_count, :content_hash, :links_internal,
        :links_external, :redirects, :fetched_at, :duration_ms, :attempt, :rendered, :error_code,
        :error_message, :data, :body_file, :body_offset, :body_length, :etag, :last_modified, :links)
ON CONFLICT (crawl, key, chk) DO NOTHING;

-- name: insert_details
-- Keep a page's details, unless they are there.
INSERT INTO page_detail (crawl, key, chk, detail) VALUES (:crawl, :key, :chk, :detail)
ON CONFLICT (crawl, key, chk) DO NOTHING;
