"""The frontier of scrapy-redis: its duplicate filter and its priority queue, as its scheduler uses them for each link.

Runs in an environment that has scrapy-redis, and prints one line of JSON. Arguments: the URL of a Redis server, how
many URLs to load, how many batches of 1,000 links to add, of which 80 % are known.
"""

import json
import random
import sys
import time

import redis
import scrapy
from scrapy.crawler import Crawler
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue


def main(url: str, size: int, batches: int) -> None:
    server = redis.Redis.from_url(url)
    spider_class = type("Bench", (scrapy.Spider,), {"name": "bench"})
    crawler = Crawler(spider_class)
    crawler.spider = spider_class()
    fingerprinter = scrapy.utils.request.RequestFingerprinter()
    seen = RFPDupeFilter(server, "bench:dupefilter")
    seen.request_fingerprint = lambda request: fingerprinter.fingerprint(request).hex()
    queue = PriorityQueue(server, crawler.spider, "bench:requests")
    before = server.info("memory")["used_memory"]

    def add(number: int) -> None:
        address = f"https://www0.example.com/section-{number % 97}/some-article-title-{number:08d}.html"
        request = scrapy.Request(address, meta={"depth": 1 + number.bit_length() // 4})
        if not seen.request_seen(request):
            queue.push(request)

    for number in range(size):
        add(number)
    each = (server.info("memory")["used_memory"] - before) / size
    dice, known = random.Random(7), size
    began = time.perf_counter()
    for _ in range(batches):
        numbers = [dice.randrange(known) for _ in range(800)] + list(range(known, known + 200))
        known += 200
        for number in numbers:
            add(number)
    rate = batches * 1000 / (time.perf_counter() - began)
    print(json.dumps({"add_per_second": rate, "bytes_per_url": each}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
