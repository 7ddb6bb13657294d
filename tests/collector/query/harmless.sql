SELECT 'getenv(''PATH'')' AS text, 'DROP TABLE nodes' AS other
SELECT node AS "read_text", count(*) AS "drop" FROM nodes GROUP BY ALL
SELECT 1 AS current_setting, 2 AS "getenv", 3 AS "select"
SELECT /* DROP TABLE nodes; */ count(*) FROM gpus -- PRAGMA database_list
EXPLAIN SELECT count(*) FROM gpu_samples WHERE ts > now()::TIMESTAMP - INTERVAL 1 HOUR
EXPLAIN ANALYZE SELECT node, avg(util_percent) FROM gpu_samples GROUP BY node
EXPLAIN (FORMAT json) WITH w AS (FROM nodes) SELECT count(*) FROM w
;; SELECT 1 ;
FROM nodes SELECT node ORDER BY ALL LIMIT 5
TABLE gpus
VALUES (1, 'a'), (2, 'b')
SHOW TABLES
DESCRIBE nodes
DESCRIBE SELECT node, ts FROM gpu_samples
SUMMARIZE SELECT util_percent, gpu FROM gpu_samples
SELECT name FROM (SHOW TABLES) WHERE name LIKE 'gpu%'
SELECT column_name, column_type FROM (DESCRIBE gpu_samples) ORDER BY 1
WITH "my rows" AS (SELECT 1 AS a), "x-y" AS (FROM "my rows") SELECT * FROM "x-y"
WITH nodes AS (SELECT 'a' AS node) SELECT * FROM nodes
WITH hot AS (SELECT 1 AS i), newest AS (SELECT 2 AS i) SELECT * FROM hot, newest
WITH query AS (SELECT 1 AS found) SELECT found FROM query
WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 100) SELECT sum(i) FROM t
WITH RECURSIVE t(k, v) USING KEY (k) AS (SELECT 1, 1 UNION SELECT k, v + 1 FROM t WHERE v < 5) FROM t
PIVOT (SELECT node, gpu FROM gpu_samples) ON gpu IN (0, 1, 2, 3) USING count(*) GROUP BY node
UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b INTO NAME n VALUE v
SELECT COLUMNS('util.*|memory.*') FROM gpu_samples
SELECT max(COLUMNS(* EXCLUDE (ts, node))) FROM gpu_samples
SELECT * REPLACE (upper(node) AS node) FROM nodes
SELECT * RENAME (node AS host) FROM nodes
SELECT #1, count(*) FROM nodes GROUP BY #1
SELECT [x * 2 FOR x IN [1, 2, 3] IF x > 1], list_transform([1, 2], lambda x: x + 1)
SELECT {'a': 1, 'b': [1, 2]}.b[2], MAP {'k': 'v'}['k'], ('abc')[1:2]
SELECT json_extract_string('{"a": {"b": "c"}}', '$.a.b'), '{"a":1}'::JSON ->> 'a'
SELECT from_json('{"a": [1, 2]}', '{"a": ["BIGINT"]}'), json_transform('{"d": "1.50"}', '{"d": "DECIMAL(10,2)"}')
SELECT j.key, j.value FROM json_each('{"a": 1, "b": 2}') j
SELECT unnest(generate_series(1, 3)) AS i, generate_series AS d FROM generate_series(DATE '2026-01-01', DATE '2026-01-03', INTERVAL 1 DAY)
SELECT time_bucket(INTERVAL 5 MINUTE, ts) AS t, avg(util_percent) FROM gpu_samples GROUP BY t ORDER BY t
SELECT node, ts, lag(ts) OVER (PARTITION BY node ORDER BY ts) AS before FROM gpu_samples QUALIFY row_number() OVER (PARTITION BY node ORDER BY ts DESC) = 1
SELECT quantile_cont(util_percent, [0.5, 0.95, 0.99]), approx_quantile(util_percent, 0.9), histogram(gpu) FROM gpu_samples
SELECT s.node, h.ts FROM gpu_samples s ASOF LEFT JOIN host_samples h ON s.node = h.node AND s.ts >= h.ts
SELECT count(*) FROM gpu_samples TABLESAMPLE reservoir(50%) REPEATABLE (42)
SELECT node FROM nodes USING SAMPLE 3 ROWS
SELECT strftime(ts, '%Y-%m-%d %H:%M'), date_trunc('hour', ts), timezone('Europe/Berlin', timezone('UTC', ts)) FROM gpu_samples
SELECT format('{:>8.2f} {}', 1.5, 'x'), printf('%05d %s', 42, 'y'), repeat('=', 20), lpad('7', 3, '0')
SELECT 'a'::ENUM('a', 'b'), 1::UNION(i INT, s VARCHAR), [1, 2, 3]::INT[3], '101'::BIT, 123::BIGNUM, X'00FF'
SELECT regexp_replace('a1b2', '[0-9]', '#', 'g'), regexp_extract('v12', 'v(\d+)', 1), 'abc' SIMILAR TO 'a.*', 'abc' GLOB 'a*'
SELECT node FROM nodes WHERE node COLLATE NOCASE = 'V1' ORDER BY node COLLATE "de"
SELECT TRY_CAST('x' AS INTEGER), TRY(CAST('x' AS INTEGER)), coalesce(NULL, 1), nullif(1, 1), CASE WHEN true THEN 1 END
SELECT $$text with 'quotes' and ; and --$$ AS t, E'line\nbreak' AS e
SELECT current_date, current_timestamp, version(), current_schema()
SELECT table_name, comment FROM duckdb_tables()
SELECT column_name, data_type, comment FROM duckdb_columns() WHERE table_name = 'gpu_samples'
SELECT table_name FROM information_schema.tables ORDER BY table_name
SELECT n.node, (SELECT count(*) FROM gpus g WHERE g.node = n.node) FROM nodes n WHERE EXISTS (SELECT 1 FROM gpus g WHERE g.node = n.node)
SELECT * FROM nodes n, LATERAL (SELECT count(*) AS c FROM gpus g WHERE g.node = n.node) l
SELECT node FROM nodes UNION ALL BY NAME SELECT node FROM gpus EXCEPT SELECT 'x' AS node
SELECT node, gpu, count(*), grouping(node) FROM gpu_samples GROUP BY ROLLUP (node, gpu)
SELECT DISTINCT ON (node) node, ts FROM gpu_samples ORDER BY node, ts DESC
SELECT count(*) FROM gpu_samples WHERE ts BETWEEN TIMESTAMP '2020-01-01' AND TIMESTAMP '2100-01-01' AND node IN ('v1', 'v2') AND gpu_uuid >= 'GPU-'
SELECT ts, model, gpu_hours FROM others_1h ORDER BY ts
SELECT "sElEcT" FROM (SELECT 1 AS "sElEcT") WHERE 'a'/**/=/**/'a'
