SELECT 0 AS c0, 1 AS c1, 2 AS c2, 3 AS c3, 4 AS c4, 5 AS c5, 6 AS c6, 7 AS c7, 8 AS c8, 9 AS c9, 10 AS c10, 11 AS c11, 12 AS c12, 13 AS c13, 14 AS c14, 15 AS c15, 16 AS c16, 17 AS c17, 18 AS c18, 19 AS c19, 20 AS c20, 21 AS c21, 22 AS c22, 23 AS c23, 24 AS c24, 25 AS c25, 26 AS c26, 27 AS c27, 28 AS c28, 29 AS c29, 30 AS c30, 31 AS c31, 32 AS c32, 33 AS c33, 34 AS c34, 35 AS c35, 36 AS c36, 37 AS 
SELECT 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || 'x' || '
SELECT count(*) FROM gpu_samples WHERE ts >= TIMESTAMP '10000-01-01'
SELECT count(*) FROM gpu_samples WHERE ts < TIMESTAMP '10000-01-01 00:00:00'
SELECT count(*) FROM gpu_samples WHERE ts = '-infinity'
SELECT count(*) FROM gpu_samples WHERE node = chr(0) || chr(10)
SELECT count(*) FROM gpus WHERE node <= chr(7) || repeat('é', 9999) AND model >= ''
SELECT count(*) FROM nodes WHERE node = 'a'' OR token = ''b' AND ts IS NULL
SELECT count(*) FROM nodes WHERE node > repeat(repeat('a\"', 5000), 4)
SELECT count(*) FROM gpu_samples g WHERE (node, gpu_uuid) > ('s1', 'GPU') AND NOT node < 'and' AND node <> 'or'
SELECT 1::UNION(a INT), '101'::BIT
SELECT row(1, 'x')
SELECT PIVOT FROM (PIVOT (SELECT 1 i, 2 j) ON i IN (1) USING sum(j) AS a, sum(j) AS b)
FROM (PIVOT (SELECT 1 i, 2 j) ON i IN (1) USING sum(j) AS a, sum(j) AS b)
PIVOT (SELECT 1 i, 2 j) ON i IN (1, 2) USING sum(j), sum(j)
SELECT printf('%.1000000000f', 1e308)
SELECT printf('%s%s%s%s'), printf('%c', -1), printf('%d', 'x')
SELECT lpad(repeat(repeat('x', 1000), 1000), 10000, '') || rpad('', 10000, ''), lpad('x', -5, 'y')
SELECT repeat('x', 10000::UTINYINT), repeat('x', 1e3)
SELECT repeat([1, 2, 3], 10000), repeat('\xAA'::BLOB, 10000)
SELECT repeat('x', count := 999999999)
SELECT rpad('x', 9223372036854775807, 'y')
SELECT 'x'.repeat(99999999)
SELECT list_resize([1], 2000000000, 7)
SELECT array_resize(['x'], -1), list_resize([1], 18446744073709551615)
SELECT range(1000000000000), generate_series(0, 9223372036854775807, 1)
SELECT range(0, 10, 0), range(9223372036854775807, -9223372036854775808, -9223372036854775808)
SELECT * FROM range(TIMESTAMP '2020-01-01', TIMESTAMP 'infinity', INTERVAL '1 year') LIMIT 5
SELECT * FROM generate_series(DATE '2020-01-01', DATE '2020-02-01', INTERVAL '0 days')
SELECT range(TIMESTAMP '2020-01-01', TIMESTAMP '290000-01-01', INTERVAL '1 month -30 days')
SELECT set_bit(bitstring('0', 64), -1, 1), get_bit('101'::BIT, 2147483647)
SELECT bitstring_agg(i, -9223372036854775808, 9223372036854775807) FROM range(3) t(i)
SELECT bitstring_agg(i, 0, 20000000000) FROM range(3) t(i)
SELECT '101'::BIT << 2147483647, '101'::BIT >> -1, 1 << 200, 1::HUGEINT << 127
SELECT (-9223372036854775808)::BIGINT % -1, (-9223372036854775808)::BIGINT // -1, (-128)::TINYINT // -1::TINYINT
SELECT ('-170141183460469231731687303715884105728'::HUGEINT) // -1, '-170141183460469231731687303715884105728'::HUGEINT % -1
SELECT gcd(-9223372036854775808, -1), lcm(9223372036854775807, 9223372036854775806), abs(-9223372036854775808::BIGINT)
SELECT factorial(33), factorial(2147483647), factorial(-1)
SELECT pow(1e308, 2), gamma(-1), lgamma(0), nextafter(1e308, 'inf'::DOUBLE), even('nan'::DOUBLE), round(1e308, 308)
SELECT round(99999999999999999999999999999999999999::DECIMAL(38,0), -38), trunc(1.5::DECIMAL(38,37), -2147483648)
SELECT round(5, -9223372036854775808), ceil('inf'::DOUBLE)::BIGINT
SELECT to_base(9223372036854775807, 2, 2147483647), to_base(1, 37), to_base(-1, 2)
SELECT jaccard(repeat(repeat('é', 10000), 100), repeat('x', 10000)), hamming('', '')
SELECT repeat('a', 5000) LIKE '%a%a%a%a%a%a%a%a%a%a%a%b'
SELECT repeat('a', 5000) SIMILAR TO '((a|aa)+)+b'
SELECT regexp_matches('x', '((((((((((x{100}){100}){100}){100}){100}){100}){100}){100}){100}){100})')
SELECT regexp_extract('abc', '(?P<x>a)(b)(c)', 2147483647), regexp_extract('abc', 'a', ['x', 'y'])
SELECT split_part('a,b', ',', -9223372036854775808), split_part('a', '', 1)
SELECT substring('abc', -9223372036854775808, 9223372036854775807), left('é', -9223372036854775808), right_grapheme('é', -9223372036854775808)
SELECT substring_grapheme('🤦🏼‍♂️x', 9223372036854775807, -9223372036854775808), array_slice('abc', -9223372036854775808, 9223372036854775807)
SELECT ([1, 2, 3])[-9223372036854775808:9223372036854775807:-9223372036854775808], list_slice([1, 2], 1, 2, 0)
SELECT list_extract([1], -9223372036854775808), ('abc')[-9223372036854775808], array_extract([1], 9223372036854775807)
SELECT chr(-1), chr(1114112), chr(55296), unicode(''), ord(chr(1114111))
SELECT decode('\xFF\xFE'::BLOB), from_hex('zz'), unbin('2'), from_base64('='), url_decode('%zz%')
SELECT translate(repeat('a', 10000), repeat('a', 10000), ''), bar(1, 0, 0, 1000), bar(1e308, -1e308, 1e308, 1e9)
SELECT parse_formatted_bytes('99999999999999999999 EB'), format_bytes(-9223372036854775808), formatreadabledecimalsize(9223372036854775807)
SELECT parse_path(repeat('/a', 10000), 'nosuch'), parse_dirpath('')
SELECT repeat('9', 10000)::BIGNUM, -(repeat('9', 10000)::BIGNUM)
SELECT '-0'::BIGNUM, '1e1000000000'::BIGNUM, 'nan'::DOUBLE::BIGNUM, 1e308::BIGNUM, ''::BIGNUM
SELECT sum(repeat('9', 10000)::BIGNUM) FROM range(1000)
SELECT (repeat('9', 30)::BIGNUM)::BLOB, '\x00'::BLOB::BIGNUM::VARCHAR
SELECT x::BIGNUM::VARCHAR FROM (VALUES ('\x80\x00\x01'::BLOB), ('\x7f'::BLOB), (''::BLOB)) t(x)
SELECT ''::BIT, '\x00'::BLOB::BIT::VARCHAR, ''::BLOB::BIT, bit_count('\xff'::BLOB::BIT)
SELECT '\x09\x00'::BLOB::BIT::VARCHAR, '\xff\xff'::BLOB::BIT & '101'::BIT
SELECT [1]::INT[100001], [[1]]::INT[1][100000]
SELECT array_value([1]::INT[1])::INT[1][1], array_cross_product([1, 2, 3]::FLOAT[3], [1, 2, 'nan']::FLOAT[3])
SELECT x FROM (SELECT NULL::INT[99999][20] AS x FROM range(3000))
SELECT NULL::INT[100000][100000]
SELECT (((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
SELECT [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
SELECT [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]
SELECT NULL::INT[][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][][]
SELECT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT NOT N
SELECT - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - - -
SELECT 1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1
SELECT lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(lower(low
SELECT * FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (FROM (F
SELECT CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN true THEN CASE WHEN tru
SELECT NULL::STRUCT(f0 INT[100], f1 INT[100], f2 INT[100], f3 INT[100], f4 INT[100], f5 INT[100], f6 INT[100], f7 INT[100], f8 INT[100], f9 INT[100], f10 INT[100], f11 INT[100], f12 INT[100], f13 INT[100], f14 INT[100], f15 INT[100], f16 INT[100], f17 INT[100], f18 INT[100], f19 INT[100], f20 INT[100], f21 INT[100], f22 INT[100], f23 INT[100], f24 INT[100], f25 INT[100], f26 INT[100], f27 INT[100]
SELECT NULL::STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a STRUCT(a 
SELECT NULL::MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, MAP(INT, 
SELECT NULL::UNION(f0 INT, f1 INT, f2 INT, f3 INT, f4 INT, f5 INT, f6 INT, f7 INT, f8 INT, f9 INT, f10 INT, f11 INT, f12 INT, f13 INT, f14 INT, f15 INT, f16 INT, f17 INT, f18 INT, f19 INT, f20 INT, f21 INT, f22 INT, f23 INT, f24 INT, f25 INT, f26 INT, f27 INT, f28 INT, f29 INT, f30 INT, f31 INT, f32 INT, f33 INT, f34 INT, f35 INT, f36 INT, f37 INT, f38 INT, f39 INT, f40 INT, f41 INT, f42 INT, f43 
SELECT a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a
SELECT {'a': 1}.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.
SELECT x[1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1][1
EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN EXPLAIN 
FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESCRIBE FROM (DESC
FROM (SUMMARIZE FROM (SUMMARIZE FROM (SUMMARIZE FROM (SUMMARIZE FROM (SUMMARIZE FROM (SUMMARIZE SELECT 1 a))))))
SELECT regexp_matches('x', '((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((
SELECT COLUMNS('(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|(a|
SELECT 1 AS "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn
SELECT "😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀😀
SELECT strptime('1', '%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d
SELECT format('{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{}{
SELECT $x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+$x+
SELECT json_structure('{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":[{"a":
SELECT '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
SELECT json_transform('1', '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
SELECT list_transform([1], lambda x: sum(x) OVER ()), list_transform(range(3), lambda x: unnest([x]))
SELECT unnest(unnest([[1]])), unnest([[1]], recursive := true), unnest({'a': [1]}, max_depth := 2147483647)
SELECT generate_subscripts([[1]], 9223372036854775807), generate_subscripts(NULL, 1)
SELECT flatten([[1], NULL, [NULL]]), flatten(NULL::INT[][]), flatten([])
SELECT switch(1, MAP {1: 2}), ago(INTERVAL '2147483647 years'), fill(1)
SELECT fill(x) OVER (ORDER BY y) FROM (VALUES ('infinity'::TIMESTAMP, 1), (NULL, 2), ('-infinity', 3)) t(x, y)
SELECT fill(x) OVER (ORDER BY y) FROM (VALUES (9223372036854775807, 1), (NULL, 9223372036854775806), (-9223372036854775808, 9223372036854775807)) t(x, y)
SELECT lag(x, 9223372036854775807, x) OVER (), lead(x, -9223372036854775808) OVER (ORDER BY x) FROM range(5) t(x)
SELECT nth_value(x, 9223372036854775807) OVER (), nth_value(x, -1) OVER (), nth_value(x, NULL) OVER () FROM range(5) t(x)
SELECT ntile(9223372036854775807) OVER (), ntile(0) OVER () FROM range(5)
SELECT ntile(-1) OVER (ORDER BY x), ntile(NULL) OVER () FROM range(5) t(x)
SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN 9223372036854775807 PRECEDING AND 9223372036854775807 FOLLOWING) FROM range(5) t(x)
SELECT sum(x) OVER (ORDER BY x ROWS BETWEEN 9223372036854775807 FOLLOWING AND 9223372036854775807 PRECEDING) FROM range(5) t(x)
SELECT sum(x) OVER (ORDER BY x RANGE BETWEEN -5 PRECEDING AND NULL FOLLOWING) FROM range(5) t(x)
SELECT count(*) OVER (ORDER BY x RANGE BETWEEN INTERVAL '2147483647 months' PRECEDING AND CURRENT ROW) FROM (VALUES ('infinity'::TIMESTAMP), (NULL), ('0001-01-01')) t(x)
SELECT list(x) OVER (ORDER BY x GROUPS BETWEEN 2 PRECEDING AND 9223372036854775806 FOLLOWING EXCLUDE TIES) FROM range(5) t(x)
SELECT mode(x) OVER w, quantile_disc(x, 0.5) OVER w, list(DISTINCT x ORDER BY x DESC) FILTER (x > 1) OVER w FROM range(50) t(x) WINDOW w AS (ORDER BY -x ROWS BETWEEN x PRECEDING AND x FOLLOWING EXCLUDE GROUP)
SELECT first_value(x IGNORE NULLS ORDER BY x DESC) OVER (ORDER BY x), cume_dist(ORDER BY x) OVER () FROM range(3) t(x)
WITH RECURSIVE t(k, v) USING KEY (k) AS (SELECT 1, 1 UNION SELECT a.k, a.v + 1 FROM t a, recurring.t b WHERE a.v < 5) FROM t
WITH RECURSIVE t(i) AS (SELECT 1 UNION SELECT (SELECT max(i) + 1 FROM t u WHERE u.i < 10) FROM t WHERE i < 10) FROM t
WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL (WITH RECURSIVE u AS (SELECT i FROM t UNION ALL SELECT i + 1 FROM u WHERE i < 5) FROM u WHERE i > 4 AND i < 4)) FROM t
WITH RECURSIVE t AS (FROM t) FROM t
WITH RECURSIVE a AS (SELECT 1 UNION ALL FROM b), b AS (SELECT 1 UNION ALL FROM a) FROM a
SELECT * FROM range(10) TABLESAMPLE reservoir(-1 ROWS)
SELECT * FROM range(10) USING SAMPLE 9223372036854775807 ROWS
SELECT * FROM range(1000) USING SAMPLE 1e300%
SELECT * FROM range(10) TABLESAMPLE bernoulli(50%) REPEATABLE (-9223372036854775808)
SELECT * FROM range(10) ORDER BY 1 LIMIT 9223372036854775807 OFFSET 9223372036854775807
SELECT * FROM range(10) LIMIT -1
SELECT * FROM range(10) LIMIT 'nan'::DOUBLE % OFFSET -5
SELECT a, b, count(*) FROM (SELECT i a, i b FROM range(10) t(i)) GROUP BY GROUPING SETS ((a), (b), (a, b), (), ()), CUBE (a, b), ROLLUP (a, b)
SELECT grouping_id(a), grouping(a, b) FROM (SELECT 1 a, 2 b) GROUP BY CUBE (a, b, a, b, a, b, a, b, a, b, a, b, a, b, a, b)
SELECT * FROM range(3000) a ASOF LEFT JOIN range(3000) b ON a.range >= b.range AND a.range <> b.range
SELECT * FROM gpu_samples WHERE ts > TIMESTAMP '-infinity'
SELECT * FROM gpu_samples WHERE ts < TIMESTAMP 'infinity' AND ts >= TIMESTAMP '0044-03-15 (BC)'
SELECT count(*) FROM gpu_samples WHERE ts <= TIMESTAMP '294246-12-31 23:59:59'
SELECT count(*) FROM gpu_samples WHERE ts > TIMESTAMP '0001-01-01 00:00:00' AND ts < TIMESTAMP '9999-12-31 23:59:59.999999'
SELECT node FROM nodes WHERE node = 'v1'') OR (''1''=''1'
SELECT count(*) FROM gpu_samples WHERE node >= 'a" or "b' OR gpu_uuid = 'x)'
SELECT count(*) FROM gpu_samples WHERE node > '\' AND gpu_uuid > '"' AND node > 'é\n"'
SELECT count(*) FROM gpu_samples WHERE node = chr(0) OR node > chr(1)
SELECT count(*) FROM gpu_samples WHERE node = (ts == 2020-01-01)
SELECT count(*) FROM gpu_samples WHERE node <> repeat('x', 10000) AND node < repeat('y', 10000) AND gpu_uuid > repeat('A', 10000)
SELECT node FROM gpu_samples WHERE node IN (SELECT 's' || i || '-' FROM range(100000) t(i))
SELECT count(COLUMNS(*)) FROM gpu_samples NATURAL JOIN host_samples NATURAL JOIN process_1m
SELECT 1
FROM gpus
FROM nodes
SELECT list(x) FROM gpu_samples x
SELECT format('{:.2147483647f}', 1.5)
SELECT format('{:c}{:d}{}', 'a', 'b', NULL), format('{{{', 1)
SELECT format('{99999999999}', 1), format('{:}>{', 1)
SELECT length(json_pretty(repeat('[', 3000) || repeat(']', 3000)))
SELECT json_transform(repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30), '{"a": {"a": "JSON"}}')
SELECT json_group_structure(x) FROM (SELECT repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30) AS x FROM range(2))
SELECT json_extract(repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30), '$..b')
SELECT json_valid(repeat(repeat('[', 10000), 300) || repeat(repeat(']', 10000), 300)), json_type(repeat(repeat('[', 10000), 300) || repeat(repeat(']', 10000), 300))
SELECT json_array(repeat(repeat('[', 10000), 30)::VARCHAR, (repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30))::JSON)
SELECT ((repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30))::JSON)::VARCHAR[]
SELECT (repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30))::JSON = '1'::JSON
SELECT json_keys(repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30)), json_exists(repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30), '$[0][0]')
SELECT TRY_CAST(repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30) AS INT[][][])
SELECT TRY_CAST(repeat(repeat('{a: ', 10000), 30) || '1' || repeat(repeat('}', 10000), 30) AS STRUCT(a STRUCT(a VARCHAR)))
SELECT TRY_CAST(repeat(repeat('{1=', 10000), 30) || '1' || repeat(repeat('}', 10000), 30) AS MAP(INT, VARCHAR))
SELECT json_extract('1', '$' || repeat(repeat('.a', 10000), 100)), json_extract('1', repeat(repeat('/a', 10000), 100))
SELECT unlist([1, 2])
SELECT bitstring_agg(i, 0, 2000000000) FROM range(100) t(i) GROUP BY i
SELECT approx_quantile(x, list_transform(range(100000), lambda i: 0.5)) FROM range(100) t(x)
SELECT sha256(repeat(repeat('x', 10000), 60000)), md5(repeat(repeat('x', 10000), 60000))
SELECT to_base64(repeat(repeat('x', 10000), 40000)::BLOB), url_encode(repeat(repeat(' ', 10000), 20000))
SELECT format(repeat('{:9999999}', 1000), 1)
SELECT gcd(x, y) FROM (SELECT 170141183460469231731687303715884105727::HUGEINT x, 105092003585314570434012390265297838417::HUGEINT y), range(10000000)
SELECT struct_pack(a := repeat('x', 10000), b := range(1000)) FROM range(10000)
SELECT MAP {'a': 'infinity'::TIMESTAMP, 'b': NULL}, ['-infinity'::DATE], {'t': '24:00:00'::TIME, 'i': INTERVAL '2147483647 days'}
SELECT '9999-12-31 23:59:59.999999'::TIMESTAMPTZ AT TIME ZONE 'Pacific/Kiritimati', '24:00:00'::TIME, '0001-01-01'::DATE - INTERVAL 1 DAY
SELECT INTERVAL '2147483647 days', INTERVAL '-9223372036854775808 us', [INTERVAL '2147483647 months']
SELECT 'nan'::DOUBLE, '-inf'::FLOAT, [1e308, 'nan'::DOUBLE], MAP {'nan'::DOUBLE: 1}, '\xFF'::BLOB, '101'::BIT
SELECT 340282366920938463463374607431768211455::UHUGEINT, -170141183460469231731687303715884105728::HUGEINT, repeat('9', 300)::BIGNUM, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID
SELECT TIME_NS '23:59:59.999999999', '23:59:59+15:59'::TIMETZ, TIMESTAMP_NS '2262-04-11 23:47:16.854775806', TIMESTAMP_S '9999-12-31 23:59:59', TIMESTAMP_MS '-infinity'
SELECT MAP {MAP {1: 2}: [MAP {[1]: 'x'}]}, MAP {{'a': 1}: 1}, MAP {NULL::INT[] : 1}
SELECT 1 AS a, 2 AS a, 3 AS "A", 4 AS ""
SELECT 0.1::DECIMAL(38, 38), 99999999999999999999999999999999999999::DECIMAL(38, 0), [1.5::DECIMAL(4, 1)], NULL::DECIMAL(1, 1)
SELECT chr(0) || 'x', chr(0) AS n, decode('a\x00b'::BLOB) AS "nul", '"a","b"' || chr(10) || chr(13) AS csv
SELECT * FROM (SELECT NULL) UNION ALL SELECT [[]] UNION ALL SELECT NULL
SELECT [] AS e, MAP {} AS m, [NULL] AS n, [[], [[]]] AS d
SELECT 'a'::JSON, '{"a": [1, NULL]}', to_json(1)
SELECT '{"a":1}'::JSON, ['1'::JSON, NULL], {'j': '[]'::JSON}, '1e999'::JSON
SELECT array_distance([1, 2]::DOUBLE[2], [1]::DOUBLE[1])
SELECT enum_range(NULL::ENUM('a', 'b')), enum_range_boundary('b'::ENUM('a', 'b'), 'a'::ENUM('a', 'b')), enum_code(NULL)
SELECT 'a'::ENUM('a', 'a'), ''::ENUM(''), 'x'::ENUM()
SELECT NULL::ENUM('a') = NULL::ENUM('b'), 'a'::ENUM('a', 'b') < 'b'::ENUM('b', 'a')
SELECT enum_first(NULL::VARCHAR), enum_last(1)
SELECT union_value(a := 1)::UNION(a INT, b VARCHAR), union_extract(union_value(a := 1), 'b'), union_tag(NULL)
SELECT DISTINCT u FROM (VALUES (1::UNION(i INT, s VARCHAR)), ('x'::UNION(i INT, s VARCHAR)), (NULL)) t(u) ORDER BY u
SELECT [1, 'x', NULL]::UNION(i INT, s VARCHAR)[]::VARCHAR[], {'a': 1}::UNION(x STRUCT(a INT), y INT[])
SELECT max(u), min(u), histogram(u), approx_count_distinct(u) FROM (VALUES (1::UNION(i INT, s VARCHAR)), ('x')) t(u)
SELECT map([1, 1], [2, 3]), map([NULL], [1]), map_from_entries([{'k': NULL, 'v': 1}])
SELECT MAP {[1]: {'a': MAP {1: 2}}}[[1]], map_concat(MAP {1: 2}, NULL, MAP {1: 3}), MAP {}::MAP(INT, INT)
SELECT map([NULL, {'a': NULL}], [1, 2]), MAP {'nan'::DOUBLE: 1, 'nan'::DOUBLE: 2}
SELECT struct_extract_at(row(1, 2), 0), struct_extract_at(row(1), -9223372036854775808), struct_extract({'a': 1}, '')
SELECT struct_insert({'a': 1}, a := 2), struct_update({'a': 1}, b := 2), struct_concat({'a': 1}, {'a': 2}), struct_pack()
SELECT {'': 1}, {'a': {'a': {'a': NULL}}}::STRUCT(a STRUCT(a STRUCT(a INT)))::VARCHAR::STRUCT(a VARCHAR)
SELECT row(1, 2) IN (row(1, '2')), row() = row(), [] = [[]], [NULL] < [1]
SELECT '{"a": [1, {"b": null}]}'::JSON::STRUCT(a JSON[]), '[1, 2]'::STRUCT(a INT)
SELECT '[[[1]], [[]], NULL]'::INT[][][], '[1, 2'::INT[], repeat('[', 10000)::INT[][]
SELECT '{a: 1, b: {c: [x, y]}}'::STRUCT(a INT, b STRUCT(c VARCHAR[])), '{=}'::MAP(INT, INT)
SELECT json_structure(repeat('{"a":', 10000) || '1' || repeat('}', 10000))
SELECT json_merge_patch(repeat('{"a":', 10000) || '1' || repeat('}', 10000), repeat('{"a":', 10000) || '2' || repeat('}', 10000))
SELECT json_group_structure(x) FROM (SELECT repeat('[', 9000) || repeat(']', 9000) AS x FROM range(3))
SELECT json_transform(repeat('[', 9000) || repeat(']', 9000), '["JSON"]')
SELECT json_extract('{"a": {"b": 1}}', '$..b'), json_extract('[1]', '$[#-99999999999999999999]'), json_extract('[1]', '/9223372036854775808')
SELECT json_extract('{}', ['$.a', '$..*', '/']), json_value('[1]', '$[*]'), json_exists('[]', '$["')
SELECT json_extract('[]', '$[18446744073709551616]'), json_extract_string('{"a":"\ud800"}', 'a')
SELECT json_object('a'), json_object(NULL, 1), json_object('a', 'inf'::DOUBLE), json_array('nan'::DOUBLE, now()::TIME)
SELECT json_group_object(k, v) FROM (VALUES (NULL, 1), ('a', 2)) t(k, v)
SELECT json_valid(chr(1)), json('{"a":1e999999}'), '"\u0000"'::JSON ->> '$', '1' -> -9223372036854775808
SELECT json_array_length('[1]', '$.a.b.c[*]'), json_keys('{"a":1}', ['$', '$..']), json_type('[1]', 'x' || repeat('.a', 5000))
SELECT json_each.* FROM json_each('{"a": [1, 2, {"b": 3}]}', '$..a')
SELECT t.j.atom FROM json_tree('{"a": 1}') t, range(2)
SELECT make_date(2147483647, 12, 31), make_date(-2147483648)
SELECT make_timestamp(9223372036854775807), make_timestamp_ns(-9223372036854775808), make_timestamp_ms(9223372036854775807)
SELECT make_time(23, 59, 1e300), make_timestamp(294247, 1, 10, 4, 0, 54.775807), make_timestamptz(2020, 1, 1, 0, 0, 0, 'Nowhere')
SELECT to_timestamp('inf'::DOUBLE), to_timestamp(1e308), to_timestamp('nan'::DOUBLE), epoch_ms(9223372036854775807)
SELECT to_years(2147483647), to_millennia(2147483647), to_microseconds(-9223372036854775808) * 2
SELECT -(INTERVAL '-9223372036854775808 microseconds'), INTERVAL 178956970 YEARS * 2147483647, normalized_interval(INTERVAL '9223372036854775807 us')
SELECT sum(INTERVAL '9223372036854775807 us'), avg(INTERVAL '2147483647 months') FROM range(3)
SELECT age('infinity'::TIMESTAMP, '-infinity'::TIMESTAMP), date_diff('microsecond', '-infinity'::TIMESTAMP, 'infinity'::TIMESTAMP), last_day('infinity'::DATE)
SELECT date_trunc('millennium', '5877642-06-25 (BC)'::DATE), date_part('julian', '5881580-07-10'::DATE), era('-infinity'::DATE)
SELECT time_bucket(INTERVAL '0 s', now()), time_bucket(INTERVAL '-1 month', DATE '2020-01-01'), time_bucket(INTERVAL '1 month 1 day', DATE '2020-01-01')
SELECT time_bucket(INTERVAL '1 us', '290309-12-22 (BC) 00:00:00'::TIMESTAMP, '294247-01-10 04:00:54.775806'::TIMESTAMP)
SELECT time_bucket(INTERVAL '2147483647 months', '290309-12-22 (BC) 00:00:00'::TIMESTAMP), time_bucket(INTERVAL 1 DAY, now(), 'Mars/Phobos')
SELECT DATE '5881580-07-10' + 2147483647, DATE '2020-01-01' - -2147483648, TIMESTAMP '294247-01-10 04:00:54' + INTERVAL 1 DAY
SELECT timezone(INTERVAL '99999999 hours', now()), timezone('Etc/GMT+99', TIMESTAMP 'infinity'), timezone_hour('24:00:00+15:59:59'::TIMETZ)
SELECT strftime('infinity'::TIMESTAMP, repeat('%Y', 5000)), strftime(DATE '5881580-07-10', '%U%W%V%G%j%n%%%')
SELECT strptime(repeat('1', 10000), '%Y'), strptime('1', repeat('%d', 5000)), try_strptime('', ['%', '%q'])
SELECT strptime('9999999999999999999', '%s'), strptime('+99:99', '%z'), strptime('2020-366', '%Y-%j')
SELECT '24:00:00.000001'::TIME, '-1:00'::TIME, '23:59:60'::TIME_NS, TIME '24:00:00' + INTERVAL '-9223372036854775808 us'
SELECT TIMESTAMP_NS '2262-04-11 23:47:16.854775807' + INTERVAL 1 DAY, '1677-09-21'::TIMESTAMP_NS::TIMESTAMP_S, 'infinity'::TIMESTAMP_NS
SELECT '9223372036854775807'::UHUGEINT * '340282366920938463463374607431768211455'::UHUGEINT, (-1)::UHUGEINT
SELECT sum(x), avg(x), product(x), stddev(x) FROM (VALUES ('170141183460469231731687303715884105727'::HUGEINT), (1)) t(x)
SELECT 1e38::DECIMAL(38,0) * 10, 0.1::DECIMAL(38,38) * 0.1::DECIMAL(38,38), 1::DECIMAL(0,0), 1::DECIMAL(39,1)
SELECT uuid_extract_timestamp('ffffffff-ffff-7fff-bfff-ffffffffffff'::UUID), uuid_extract_version('x'::UUID), '{}'::UUID
SELECT quantile_cont(x, -0.5), quantile_disc(x, 2), quantile(x, ['nan'::DOUBLE]) FROM range(3) t(x)
SELECT approx_quantile(x, 'nan'::DOUBLE), approx_quantile(x, NULL) FROM range(3) t(x)
SELECT reservoir_quantile(x, [0.1, 0.9], -1) FROM range(10) t(x)
SELECT approx_top_k(x, 9223372036854775807) FROM range(10) t(x)
SELECT max(x, 9223372036854775807), min(x, -1) FROM range(10) t(x)
SELECT arg_max(x, x, 1000000), max_by(x, NULL, 5), arg_min(x, 'nan'::DOUBLE) FROM range(10) t(x)
SELECT histogram(x, equi_width_bins(0, 10, 10000000000, true)) FROM range(10) t(x)
SELECT equi_width_bins((-9223372036854775808)::BIGINT, 9223372036854775807, 5, true), equi_width_bins('-inf'::DOUBLE, 'nan'::DOUBLE, 3, false)
SELECT equi_width_bins('-infinity'::TIMESTAMP, 'infinity'::TIMESTAMP, 10, true), equi_width_bins(DATE '2020-01-01', DATE '2020-01-01', 5, true)
SELECT histogram_exact(x, [NULL, 1, 1]), histogram(x, []::BIGINT[]), histogram(x, NULL) FROM range(3) t(x)
SELECT mad(x), median(x), mode(x) FROM (VALUES ('infinity'::TIMESTAMP), ('-infinity'), ('294247-01-10 04:00:54')) t(x)
SELECT mad(x) FROM (VALUES (DATE '5881580-07-10'), (DATE '5877642-06-25 (BC)')) t(x)
SELECT kurtosis(x), skewness(x), sem(x), regr_r2(x, x), corr(x, x), wavg(x, 0), fsum(x) FROM (VALUES (1e308), (-1e308), ('nan')) t(x)
SELECT string_agg(x, y) FROM (VALUES ('a', 'b')) t(x, y)
SELECT first(x ORDER BY x NULLS FIRST, y DESC) FILTER (y), any_value(x ORDER BY ALL) FROM (VALUES (1, true)) t(x, y)
SELECT list_grade_up([3, 1, NULL], 'DESC', 'X'), list_sort([1], 'nosuch'), list_sort([[1], NULL], 'ASC', NULL)
SELECT list_zip([1], [2, 3], 'x'), list_select([1, 2], [9223372036854775807, -1, NULL]), list_where([1], [true, true, NULL])
SELECT list_reduce([], lambda a, b: a + b), list_reduce([1], lambda a, b, c, d: 1), list_transform([1], lambda x, i, z: x)
SELECT list_transform([1], lambda x: list_transform([x], lambda x: list_transform([x], lambda y: x + y + z)))
SELECT list_filter([1, 2, 3], lambda x, i: (SELECT count(*) FROM nodes) > i)
SELECT sum(octet_length(encode(g::VARCHAR))) FROM gpu_samples g TABLESAMPLE RESERVOIR (9223372036854775807 ROWS)
SELECT n.node, (SELECT count(*) FROM gpu_samples s WHERE s.node <> n.node) FROM nodes n
SELECT count(*) FILTER (node NOT LIKE 'v%') OVER () FROM gpu_samples QUALIFY row_number() OVER () = 1
SELECT approx_count_distinct(COLUMNS(*)) FROM slurm_jobs
SELECT min(node), max(node), mode(node), list(DISTINCT node), string_agg(node), histogram(node), approx_top_k(node, 100) FROM nodes
SELECT reservoir_quantile(gpu, 0.5, 100), approx_quantile(gpu, [0.0, 1.0]), entropy(node) FROM gpu_samples
SELECT a.node FROM nodes a ANTI JOIN gpu_samples b USING (node)
SELECT * FROM nodes POSITIONAL JOIN gpus
SELECT * FROM gpu_samples ASOF JOIN host_samples USING (node, ts)
SELECT max(rowid), count(rowid) FROM gpu_samples
SELECT node, rowid FROM nodes WHERE rowid >= 0
SELECT filename, file_row_number FROM gpu_samples
SELECT table_name, estimated_size, column_count, index_count, sql FROM duckdb_tables()
SELECT * FROM duckdb_columns() WHERE schema_name <> 'main' OR database_name <> 'gpuwarden'
SELECT view_name, sql FROM duckdb_views() WHERE sql LIKE '%team%' OR sql LIKE '%hot%'
SELECT * FROM information_schema.tables WHERE table_schema <> 'main' OR table_catalog <> 'gpuwarden'
SELECT view_definition FROM information_schema.views WHERE view_definition ILIKE '%visible%'
SELECT * FROM information_schema.schemata, information_schema.character_sets
SELECT * FROM (SHOW ALL TABLES) WHERE schema <> 'main' OR database <> 'gpuwarden'
SELECT * FROM (SHOW databases)
FROM (DESCRIBE variables) v, (SHOW schemas) s
SHOW TABLES FROM temp
SHOW TABLES FROM system.main
SHOW TABLES FROM memory
SHOW TABLES FROM lake
SHOW SCHEMAS FROM system
FROM (SUMMARIZE (SELECT * FROM gpu_samples UNION ALL BY NAME SELECT * FROM host_samples))
SUMMARIZE SELECT node, gpu_uuid, rowid FROM gpu_samples
DESCRIBE SELECT * FROM hot_gpu_samples
EXPLAIN (FORMAT json) SELECT * FROM gpu_samples WHERE node > 's' AND node < 't'
EXPLAIN ANALYZE SELECT count(*) FROM slurm_jobs, nodes, gpus WHERE slurm_jobs.username > 'a'
EXPLAIN (ANALYZE, FORMAT html) SELECT node FROM nodes ORDER BY ALL
EXPLAIN (ANALYSE, FORMAT graphviz) FROM alerts_now
EXPLAIN (FORMAT yaml, ANALYZE) SELECT * FROM hot_nodes
EXPLAIN /* a */ ANALYZE -- b
EXPLAIN EXPLAIN SELECT 1
EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1
EXPLAIN (FORMAT json) PRAGMA database_list
EXPLAIN (FORMAT text, FILE '/tmp/x') SELECT 1
EXPLAIN ANALYZE INSERT INTO nodes (node) VALUES ('x') RETURNING *
WITH x AS (INSERT INTO nodes (node) VALUES ('x') RETURNING *) FROM x
WITH x AS MATERIALIZED (DELETE FROM nodes RETURNING node) SELECT * FROM x
SELECT * FROM (UPDATE nodes SET node = 'x' RETURNING node)
SELECT 1 INTO TEMP mine
CREATE TEMP MACRO lower(x) AS 'owned'
CREATE OR REPLACE TEMP VIEW gpus AS SELECT 1 AS x
PREPARE p AS SELECT $1; EXECUTE p(1)
EXECUTE p
SET VARIABLE a = 1
SELECT getvariable('a'), current_setting('temp_directory')
RESET SESSION TimeZone
USE memory
CHECKPOINT; SELECT 1
ATTACH ':memory:' AS extra
LOAD 'sqlite_scanner'; SELECT 1
CALL duckdb_settings()
VALUES (1); VALUES (2)
;;;SELECT 1;;;
/* /* */ SELECT 1 */ DROP TABLE nodes
SELECT 1 --; DROP TABLE nodes
BEGIN; SELECT 1; COMMIT
COPY (SELECT 42) TO '/dev/stdout'
EXPORT DATABASE '/tmp/x'
VACUUM ANALYZE
PRAGMA show_tables_expanded
SELECT * FROM pragma_user_agent()
FROM 'state.sqlite'
FROM "/proc/self/environ"
FROM '/etc/passwd' AS gpus
SELECT * FROM gpus, '/proc/self/maps'
WITH gpus AS (FROM '/etc/hostname') FROM gpus
FROM "https://127.0.0.1:1/x.parquet"
SELECT * FROM glob('/**')
FROM sniff_csv('/etc/passwd')
SELECT content FROM read_text('/proc/self/cmdline')
FROM read_blob(['/proc/self/environ'])
SELECT ('/etc/passwd').read_text()
SELECT "read_text"('/etc/passwd')
SELECT main.getenv('PATH')
SELECT system.main.getenv('HOME')
SELECT pg_catalog.current_setting('memory_limit')
SELECT x.getvariable() FROM (VALUES ('a')) t(x)
SELECT list_transform(['PATH'], lambda x: x.getenv())
SELECT array_apply(['TimeZone'], current_setting)
SELECT list_aggregate([1,2], 'getenv')
SELECT list_aggr(['/etc/passwd'], 'read_' || 'text')
SELECT list_aggregate([1, 2], 'histogram_exact', [1])
SELECT list_aggregate(['a'], 'string_agg', current_setting('TimeZone'))
SELECT list_aggregate([1, 2], 'quantile_cont', 2.0), list_aggregate([3], 'reservoir_quantile', 0.5, 0)
SELECT array_aggr([1], 'approx_top_k', -1)
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table(['nodes', 'gpus'], true)
SELECT * FROM json_execute_serialized_sql(json_object('error', false, 'statements', []))
SELECT json_serialize_plan('SELECT 1'), json_serialize_sql('SELECT 2')
FROM arrow_scan(1, 2, 3)
FROM pandas_scan(94000000000000)
FROM python_map_function()
FROM seq_scan('nodes')
FROM repeat_row(1, 2, num_rows = 10)
FROM test_all_types()
FROM duckdb_secrets(redact = false)
FROM which_secret('s3://x', 's3')
FROM duckdb_logs_parsed('FileSystem')
FROM duckdb_memory() m, duckdb_temporary_files()
FROM duckdb_prepared_statements()
FROM duckdb_connections()
FROM main.duckdb_variables()
FROM system.main.duckdb_tables()
FROM "Duckdb_Tables"()
FROM duckdb_functions() WHERE function_name = 'in_search_path'
SELECT in_search_path('memory', 'main')
FROM summary((FROM nodes))
SELECT stats(node) FROM nodes
SELECT vector_type(node) FROM nodes
SELECT txid_current(), pg_backend_pid(), pg_sleep(1)
SELECT write_log('x', level := 'error', log_type := 'x')
SELECT sleep_ms(100000)
SELECT setseed(0.5), nextval('s'), currval('s')
SELECT add_parquet_key('k', '0123456789112345')
SELECT sum(x) FILTER (x > 0) EXPORT_STATE FROM range(3) t(x)
SELECT finalize(x::BLOB) FROM range(2) t(x)
SELECT CAST('\x00\x00\x00\x00\x00\x00\x00\x00'::BLOB AS AGGREGATE_STATE)
SELECT 1::POINTER
SELECT NULL::VARIANT, parse_json('1')
SELECT 'x'::"system.main.varchar"
SELECT '1'::memory.main.integer
SELECT 1::"INTEGER "
SELECT 'a'::ENUM(SELECT node FROM nodes)
SELECT from_json('{"a":1}', '{"a":"GEOMETRY"}')
SELECT from_json('[1]', '["ENUM(SELECT 1)"]')
SELECT json_transform('{"a":1}', '{"a":"STRUCT(b POINTER)"}')
SELECT json_transform('{"a":1}', '{"a":"INTEGER[3][]","a":"VARIANT"}')
SELECT from_json_strict('"x"', '"DECIMAL(100,100)"')
SELECT json_transform('"1"', '"BIGINT[9223372036854775807]"')
SELECT json_transform('{"a":[1,2]}', '{"a":["DECIMAL(38,38)"]}'), from_json('[[1]]', '[["INT[2]"]]')
SELECT cast_to_type('a', NULL::BLOB), replace_type(1, 1, 'x')
SELECT __internal_compress_string_ubigint('abc')
SELECT __internal_decompress_integral_bigint(1::UTINYINT, 5)
SELECT create_sort_key(node, 'ASC') FROM nodes
SELECT can_cast_implicitly(1, 'x'), get_type(1), make_type('INTEGER')
SELECT remap_struct({'a': 1}, NULL::STRUCT(b INT), {'b': 'a'}, NULL)
SELECT invoke(lambda x: x + 1, 2)
SELECT st_read('/etc/passwd'), http_get('http://127.0.0.1')
SELECT sqlite_scan('x', 'y')
FROM sqlite_attach('state.sqlite')
FROM ducklake_snapshots('lake')
FROM postgres_query('x', 'SELECT 1')
FROM lake.main.gpu_samples
FROM gpuwarden.bound.nodes
FROM temp.main.hot_nodes
FROM temp.newest_gpu_samples
FROM memory.main.nodes
FROM "gpuwarden.main".nodes
FROM "main.hot_nodes"
FROM "temp"."main"."hot_jobs" AS nodes
FROM own_nodes
WITH own_nodes AS (SELECT 1) SELECT * FROM (SELECT * FROM own_nodes), (WITH q AS (SELECT 1) FROM own_nodes)
WITH running AS (SELECT 1) SELECT 1 UNION ALL SELECT 2 FROM waste_running
WITH "hot_nodes" AS (SELECT 1 AS a) SELECT a FROM "hot_nodes"
WITH "HOT_nodes " AS (SELECT 1) FROM "HOT_nodes "
WITH "hоt_nodes" AS (SELECT 1) FROM "hоt_nodes"
WITH a AS (WITH b AS (SELECT 1) FROM b) SELECT * FROM a, b
WITH RECURSIVE "newest gpus" AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM "newest gpus" WHERE i < 3) FROM "newest gpus"
WITH "a.b" AS (SELECT 1) FROM "a.b"
WITH "/etc/passwd" AS (SELECT 1) FROM "/etc/passwd"
WITH "x csv" AS (SELECT 1) SELECT (SELECT count(*) FROM "x csv") FROM (FROM "x csv")
WITH sqlite_master AS (SELECT 1) FROM sqlite_master
WITH nodes AS (SELECT 'fake' AS node) SELECT * FROM nodes, main.nodes m
WITH query_log AS (SELECT 1 AS token) FROM main.query_log
FROM audit
FROM gpuwarden.query_log
SELECT (SELECT list(q) FROM query_log q)
SUMMARIZE audit
DESCRIBE collector_samples
SELECT * FROM silences UNION ALL BY NAME SELECT * FROM nodes
SELECT * FROM "Query_Log"
SELECT * FROM nodes AT (VERSION => 1)
SELECT * FROM nodes AT (TIMESTAMP => now() - INTERVAL 1 DAY)
PIVOT nodes ON node USING count(*)
PIVOT gpu_samples ON node IN ('v1', 's1') USING sum(gpu), getenv('HOME')
PIVOT nodes ON (node IN (SELECT node FROM nodes)) USING count(*)
FROM (PIVOT (SELECT node, gpu FROM gpu_samples) ON node IN (ENUM_TYPE))
UNPIVOT nodes ON COLUMNS(* EXCLUDE (node)) INTO NAME n VALUE v
SELECT COLUMNS('(?i).*secret|.*token.*') FROM nodes
SELECT COLUMNS(lambda c: getenv(c) IS NULL) FROM nodes
SELECT *COLUMNS(*) FROM nodes
SELECT coalesce(*COLUMNS('.*')) FROM (SELECT 1 a, 2 b)
SELECT nodes.* EXCLUDE (main.nodes.node) REPLACE (read_text('/etc/passwd') AS cluster) FROM nodes
SELECT * RENAME (node AS getenv) FROM nodes WHERE getenv = 'x'
SELECT #1, #999999999 FROM nodes
SELECT #0 FROM nodes
SELECT node AS getenv, getenv || 'x' FROM nodes ORDER BY #2
SELECT current_setting FROM (SELECT 1 AS current_setting)
SELECT gpu_samples.gpu_samples.node FROM gpu_samples
SELECT s['node'], s.node, s[1] FROM (SELECT nodes AS s FROM nodes)
SELECT $1::VARCHAR, ?
SELECT $a FROM nodes LIMIT $b
SELECT * FROM nodes WHERE node = $$a$$ || $x$b$x$
SELECT E'\x00\u0000\n', U&'\0041'
SELECT X'00FF', B'101'
SELECT 1_000_000, 0x7fffffffffffffff, 0b101, 1e400, .5e-400
SELECT 1 FROM nodes
SELECT​1﻿FROM nodes
SELECT "a b", ＇x＇ FROM nodes
ＳＥＬＥＣＴ 1
sElEcT/**/getENV/**/('PATH')
SELECT "getenv" ('PATH')
SELECT getenv('HOME')
select lower("GETENV"('HOME'))
SELECT CURRENT_USER, session_user, "user", current_catalog, localtimestamp
SELECT DEFAULT
SELECT * FROM (VALUES (DEFAULT))
SELECT TABLE nodes
TABLE hot_nodes
FROM nodes SELECT node UNION FROM hot_gpus SELECT node
SELECT EXISTS (FROM temp.hot_jobs)
SELECT ARRAY(SELECT node FROM hot_nodes)
SELECT node IN (FROM hot_nodes SELECT node) FROM nodes
SELECT * FROM nodes, LATERAL (SELECT * FROM hot_gpus h WHERE h.node = nodes.node)
SELECT [x.getenv() FOR x IN ['PATH'] IF true]
SELECT lower(x) OVER (), getenv('A') OVER () FROM range(1) t(x)
SELECT count(*) FILTER (getenv('A') IS NULL) FROM nodes
SELECT sum(1 ORDER BY getenv('A')) FROM nodes
SELECT * FROM nodes ORDER BY getenv('A')
SELECT * FROM nodes LIMIT (SELECT length(getenv('PATH')))
SELECT * FROM range(getenv('A')::INT)
SELECT node FROM nodes GROUP BY node HAVING current_setting('threads') = '1'
SELECT DISTINCT ON (getenv('A')) node FROM nodes
SELECT last(node ORDER BY pg_sleep(1)) FROM nodes
SELECT first_value(node) OVER (ROWS BETWEEN getenv('A')::INT PRECEDING AND CURRENT ROW) FROM nodes
SELECT node COLLATE "de.nocase", node COLLATE nosuch FROM nodes
SELECT node FROM nodes ORDER BY node COLLATE "NOCASE.NOACCENT.NOCASE.NFC.C"
SELECT 'x'::VARCHAR COLLATE "../../etc"
SELECT timezone('../../etc/passwd', now()), timezone('posixrules', TIMESTAMP '2020-01-01')
SELECT error('x'), error(repeat('x', 10000))
SELECT CASE WHEN (SELECT count(*) FROM gpu_samples WHERE node LIKE 's1%') > 0 THEN error('there') END
SELECT (SELECT node FROM nodes WHERE node LIKE 's%')::INTEGER
SELECT * FROM gpu_samples WHERE CAST(node AS INTEGER) > 0
SELECT * FROM gpu_samples WHERE node > 's' AND node::INTEGER = 1
SELECT * FROM nodes WHERE 1 / (ascii(node) - 115) > 0 AND node LIKE 's%'
SELECT TRY(node::INTEGER), try_strptime(node, '%Y') FROM nodes
select * from gpu_samples;
VALUES (1), (2)
WITH x AS (SELECT 1) SELECT * FROM x
WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n < 5) FROM x
SELECT * FROM main.gpus_now UNION ALL SELECT * FROM gpus_now
SELECT * FROM range(10), generate_series(1, 3), unnest([1, 2])
SELECT unnest([1, 2])
SELECT * FROM information_schema.tables
DESCRIBE gpus
DESCRIBE SELECT 1
EXPLAIN SELECT * FROM gpus
/* why */ EXPLAIN /* now */ ANALYZE SELECT 1
EXPLAIN (FORMAT json) SELECT 'é'
EXPLAIN (ANALYZE, FORMAT json) SELECT 1
EXPLAIN (SELECT 1)
EXPLAIN ANALYZE (SELECT 1)
;; EXPLAIN ANALYSE/* ( */((SELECT 1))
PIVOT gpus ON node IN ('a', 'b') USING count(*)
SELECT repeat('-', 20), lpad('x', 10, ' ')
SELECT $now::TIMESTAMP - INTERVAL 1 HOUR
SELECT json_extract(labels, '$.team') FROM nodes
SELECT node.upper() FROM gpuwarden.main.gpus
SELECT column_name FROM gpuwarden.information_schema.columns
SELECT * FROM (SHOW TABLES)
SELECT COLUMNS(c -> c LIKE 'util%') FROM gpus_now
SELECT comment FROM duckdb_columns() JOIN main.duckdb_tables() USING (table_name)
SHOW ALL TABLES
SHOW TABLES FROM main
FROM Gpus, NODES_NOW
WITH "GPU hours" AS (SELECT 1), gpus AS (FROM "gpu HOURS") FROM GPUS
SELECT (WITH a AS (SELECT 1) SELECT (FROM a))
SELECT list_transform([1], lambda x: x + 1), [x FOR x IN [1]], {'a': 1}.a, [1][1:2]
SELECT sum(1) OVER w, count(*) FILTER (true) OVER () WINDOW w AS (ORDER BY 1)
SELECT 1e400, 'a' SIMILAR TO 'b', x'ff' FROM gpus_now ASOF JOIN nodes_now USING (node)
﻿SELECT 1
SELECT 1; SELECT 2
INSERT INTO gpus VALUES (1)
not INSERT
UPDATE gpus SET node = 'x'
not UPDATE
DELETE FROM gpu_samples
not DELETE
CREATE TABLE x (a INT)
not CREATE
CREATE TEMP TABLE x AS SELECT 1
DROP TABLE gpus
ALTER TABLE gpus ADD COLUMN x INT
COPY gpus TO 'x.csv'
COPY (SELECT 1) TO '/tmp/x'
ATTACH 'x.db'
not ATTACH
SET threads = 1
SET VARIABLE x = 1
INSTALL httpfs
not INSTALL
LOAD httpfs
CALL force_checkpoint()
PREPARE x AS SELECT 1
PRAGMA database_list
PRAGMA is not allowed
PRAGMA table_info('gpus')
PIVOT gpus ON node USING count(*)
PIVOT must name its values
EXPLAIN INSERT INTO gpus VALUES (1)
EXPLAIN of anything but a SELECT
EXPLAIN ANALYZE DELETE FROM gpus
EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1
SELECT * FROM read_csv('/etc/passwd')
table function read_csv() is not allowed
SELECT * FROM read_text('/etc/passwd')
table function read_text() is not allowed
SELECT * FROM READ_PARQUET('x')
table function read_parquet() is not allowed
SELECT * FROM glob('*')
table function glob() is not allowed
SELECT * FROM duckdb_settings()
table function duckdb_settings() is not allowed
SELECT * FROM force_checkpoint('x')
table function force_checkpoint() is not
SELECT * FROM query('DROP TABLE gpus')
table function query() is not allowed
SELECT * FROM query_table('gpus')
table function query_table() is not allowed
SELECT (SELECT max(size) FROM read_text('x'))
table function read_text() is not
WITH x AS (FROM glob('*')) FROM x
EXPLAIN SELECT * FROM glob('*')
EXPLAIN ANALYZE SELECT * FROM glob('*')
EXPLAIN ANALYZE (FROM glob('*'))
EXPLAIN ANALYZE (SELECT * FROM internal.ledger)
EXPLAIN ((FROM internal.ledger))
EXPLAIN (FORMAT json) (FROM internal.ledger)
EXPLAIN (ANALYZE) DELETE FROM gpus
DESCRIBE SELECT * FROM glob('*')
SELECT * FROM gpus WHERE node IN (SELECT file FROM glob('*'))
PIVOT (FROM glob('*')) ON file IN ('a')
SELECT * FROM internal.ledger
SELECT * FROM gpuwarden.internal.ledger
SELECT * FROM duckdb_settings
table duckdb_settings does not exist or is not open
SELECT * FROM pg_catalog.pg_tables
SELECT * FROM sqlite_master
table sqlite_master does not exist or is not open
SELECT * FROM system.main.duckdb_tables
FROM system.main.duckdb_columns()
table function duckdb_columns() is not allowed
FROM described.comments
DESCRIBE internal.ledger
SELECT current_setting('secret_directory')
SELECT json_serialize_plan('FROM internal.ledger')
SELECT nextval('x')
SELECT sleep_ms(1000)
SELECT repeat('x', 2000000000)
SELECT repeat('x', n) FROM range(9) t(n)
SELECT lpad('x', 100000000, 'y')
SELECT 1; DELETE FROM gpus
WITH x AS (SELECT 1) INSERT INTO gpus FROM x
EXPLAIN SELECT 1; SELECT 2
EXPLAIN needs a SELECT after it
EXPLAIN PIVOT gpus ON node
MERGE INTO gpus USING nodes ON true WHEN MATCHED THEN DELETE
FROM lake.gpu_samples
FROM memory.main.gpus
FROM "gpuwarden.main".gpus
FROM hot.gpu_samples_1
FROM lake.information_schema.tables
FROM __ducklake_metadata_lake.ducklake_table
DESCRIBE lake.main.gpu_samples
FROM (DESCRIBE lake.main.gpu_samples)
SHOW TABLES FROM internal
SHOW TABLES FROM lake.main
FROM 'lake/data/x.parquet'
table lake/data/x.parquet does not exist or is not open
FROM '/etc/passwd.csv'
table /etc/passwd.csv does not exist or is not open
FROM 'x.duckdb'
table x.duckdb does not exist or is not open
DESCRIBE "x.parquet"
table x.parquet does not exist or is not open
FROM main."x.parquet"
FROM information_schema."x.parquet"
FROM database
table database does not exist or is not open
WITH a AS (SELECT 1) FROM main.a
table a does not exist or is not open
WITH a AS (FROM 'x.csv'), "x.csv" AS (SELECT 1) FROM a
WITH duckdb_logs AS (SELECT 1) SELECT 1
FROM lake.set_option('a', 'b')
table function set_option() is not allowed
FROM lake.main.range(3)
table function range() is not allowed
table function ducklake_snapshots() is not
FROM postgres_scan('host=x', 'public', 't')
FROM enable_logging(storage_path => 'x')
FROM sniff_csv('x')
table function sniff_csv() is not allowed
FROM duckdb_secrets()
table function duckdb_secrets() is not allowed
FROM histogram('gpus', 'node')
table function histogram() is not allowed
SELECT system.main.current_setting('threads')
SELECT pg_catalog.pg_sleep(9)
SELECT no_such_function(1)
SELECT current_setting('threads')
SELECT -current_setting('threads')
SELECT abs(current_setting('threads'))
SELECT try(current_setting('threads'))
SELECT CASE WHEN true THEN current_setting('threads') END
SELECT [current_setting('threads')], {'a': current_setting('threads')}
SELECT list_transform([1], lambda x: current_setting('threads'))
SELECT [current_setting('threads') FOR x IN [1]]
SELECT COLUMNS(c -> current_setting('threads') = 'x') FROM gpus
SELECT * REPLACE (current_setting('threads') AS node) FROM gpus
SELECT DISTINCT ON (current_setting('threads')) 1
SELECT sum(1) OVER (PARTITION BY current_setting('threads'))
SELECT sum(1) OVER w FROM gpus WINDOW w AS (ORDER BY current_setting('threads'))
SELECT lag(1, 1, current_setting('threads')) OVER ()
SELECT array_agg(1 ORDER BY current_setting('threads'))
SELECT count(*) FILTER (current_setting('threads') = '1')
VALUES (1), (current_setting('threads'))
FROM range(current_setting('threads'))
FROM gpus JOIN nodes ON current_setting('threads') = '1'
FROM gpus WHERE current_setting('threads') = '1'
SELECT 1 GROUP BY GROUPING SETS ((current_setting('threads')))
SELECT 1 HAVING current_setting('threads') = '1'
FROM gpus QUALIFY current_setting('threads') = '1'
FROM gpus ORDER BY current_setting('threads')
FROM gpus LIMIT current_setting('threads')
FROM gpus OFFSET current_setting('threads')
PIVOT gpus ON node IN ('a') USING max(current_setting('threads'))
PIVOT gpus ON node || current_setting('threads') IN ('a') USING count(*)
WITH x AS (SELECT current_setting('threads')) SELECT 1
WITH RECURSIVE x AS (SELECT 1 UNION ALL SELECT current_setting('threads') FROM x) SELECT 1
SELECT 1 UNION SELECT current_setting('threads')
FROM gpus, LATERAL (SELECT current_setting('threads'))
DESCRIBE SELECT current_setting('threads')
SUMMARIZE SELECT current_setting('threads')
EXPLAIN ANALYZE SELECT current_setting('threads')
SELECT $a, '$b', $$ $c $$ -- $d
EXPLAIN ANALYZE SELECT $a LIMIT $b OFFSET $c
WITH x AS (SELECT $a) FROM x WHERE EXISTS (FROM range($b)) AND $a
SELECT ?, ?
SELECT sum($a) OVER (ROWS $b PRECEDING) FROM gpus USING SAMPLE 3
SELECT 1 -- x
 SELECT 1
explain select 1
EXPLAIN select 1
; /* a */ EXPLAIN ANALYSE​	SELECT 1;
EXPLAIN ANALYZE ​	SELECT 1;
EXPLAIN(ANALYZE, FORMAT 'JSON')FROM gpus
EXPLAIN (ANALYZE, FORMAT JSON) FROM gpus
postgres_execute('__ducklake_metadata_lake', 'DROP TABLE x')
EXPLAIN ANALYZE SELECT $$ SELECT $$, sentinel() -- $$
EXPLAIN ANALYZE (SELECT $$ SELECT $$, sentinel()) -- $$
EXPLAIN ANALYZE SELECT 1; SELECT sentinel()
PRAGMA table_info(sentinel())
PRAGMA json_execute_serialized_sql(sleep_ms(20000)::VARCHAR)
PRAGMA json_execute_serialized_sql(current_setting('temp_directory'))
PRAGMA import_database(current_setting('temp_directory'))
PRAGMA json_execute_serialized_sql(repeat('x', 3000000000))
EXPLAIN PRAGMA table_info(current_setting('temp_directory'))
SELECT 1; PRAGMA json_execute_serialized_sql(current_setting('temp_directory'))
CALL json_execute_serialized_sql(current_setting('temp_directory'))
SET threads = current_setting('temp_directory')
DELETE FROM gpus
FROM bound.gpu_samples
FROM gpuwarden.bound.gpu_samples
FROM hot_gpu_samples
FROM temp.hot_gpu_samples
FROM lake.inlined.gpu_samples
FROM newest_gpu_samples
FROM memory.gpu_samples
EXPLAIN ANALYZE SELECT * FROM gpu_samples
FROM query_table('gpu_samples')
FROM query('FROM gpu_samples')
SELECT * FROM hot_gpu_samples h, (WITH hot_gpu_samples AS (SELECT 1 AS one) FROM hot_gpu_samples) x
FROM bound.waste_1h
FROM gpuwarden.bound.waste_1h
FROM hot_waste_1h
FROM temp.hot_waste_1h
FROM lake.main.waste_1h
FROM lake.inlined.waste_1h
FROM newest_waste_1h
FROM memory.waste_1h
EXPLAIN ANALYZE SELECT * FROM waste_1h
FROM query_table('waste_1h')
FROM query('FROM waste_1h')
SELECT * FROM hot_waste_1h h, (WITH hot_waste_1h AS (SELECT 1 AS one) FROM hot_waste_1h) x
FROM bound.nodes
FROM hot_nodes
FROM temp.hot_nodes
FROM lake.main.nodes
FROM lake.inlined.nodes
FROM newest_nodes
FROM memory.nodes
EXPLAIN ANALYZE SELECT * FROM nodes
FROM query_table('nodes')
FROM query('FROM nodes')
SELECT * FROM hot_nodes h, (WITH hot_nodes AS (SELECT 1 AS one) FROM hot_nodes) x
FROM bound.alerts
FROM gpuwarden.bound.alerts
FROM hot_alerts
FROM temp.hot_alerts
FROM lake.main.alerts
FROM lake.inlined.alerts
FROM newest_alerts
FROM memory.alerts
EXPLAIN ANALYZE SELECT * FROM alerts
FROM query_table('alerts')
FROM query('FROM alerts')
SELECT * FROM hot_alerts h, (WITH hot_alerts AS (SELECT 1 AS one) FROM hot_alerts) x
SELECT list_aggregate([1, 2], 'sum')
SELECT from_json('{}', '{"a": "BIGINT", "b": ["VARCHAR"], "c": "DECIMAL(4, 2)[]"}')
SELECT (any_value('longer than twelve bytes') EXPORT_STATE)::BLOB
SELECT sum(1) EXPORT_STATE
SELECT 1 UNION ALL BY NAME SELECT sum(1) EXPORT_STATE
SELECT 1::VARIANT
SELECT TRY_CAST('1' AS VARIANT[])
SELECT [1]::STRUCT(a INTEGER, b MAP(VARCHAR, VARIANT))[]
SELECT 'INTEGER'::TYPE
SELECT 'x'::GEOMETRY
SELECT 1::of_somebody
SELECT 1::main.of_somebody
SELECT 1::AGGREGATE_STATE
FROM gpus AT (VERSION => 1)
SELECT finalize(x) FROM (SELECT 1 AS x)
SELECT combine(x, x) FROM (SELECT 1 AS x)
SELECT cast_to_type(from_hex('00'), 1)
SELECT replace_type(1, 2, 'x')
SELECT list_aggregate([1], 'fin' || 'alize')
SELECT list_aggr([1], 'combine')
SELECT [1].aggregate($name)
SELECT array_aggregate([1])
SELECT from_json('1', '"VARIANT"')
SELECT json_transform('1', '{"a": ["POINTER"]}')
SELECT from_json_strict('1', $structure)
SELECT json_transform_strict('1', '{"a": 1}')
SELECT TRY(1)
SELECT finalize(cast_to_type(from_hex('0004000000000000000000000000000001000000000000000000'), s)) FROM (SELECT any_value('longer than twelve bytes') EXPORT_STATE AS s)
SELECT finalize(s) FROM (SELECT any_value('longer than twelve bytes') EXPORT_STATE AS s UNION ALL BY NAME SELECT from_hex('00') AS s)
SELECT union_value(k := {'z': 1})
SELECT NULL::INT[100000][100000][100000]
PIVOT (SELECT 1 i, 2 j) ON i IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24) USING sum(j) AS a, sum(j) AS b
SELECT NULL::INT[100000][100000][10000]
SELECT NULL::STRUCT(a INT[100000][100000][100000])
SELECT from_json('1', '"INT[100000][100000][100000]"')
SELECT [NULL::INT[99999][99999][99999]]
SELECT reservoir_quantile(1, 0.5, 1000000000)
SELECT list_aggregate([1], 'reservoir_quantile', 0.5, 2147483647)
SELECT reservoir_quantile(gpu, 0.5, 2147483647) OVER () FROM gpu_samples
PIVOT (SELECT i, i % 7 AS j FROM range(10) t(i)) ON i IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 
SELECT hash(x), md5_number(x::VARCHAR), murmur3_32('x') FROM (SELECT {'a': [MAP {1: 'x'}]} x)
SELECT json_merge_patch(repeat(repeat('{"a":', 10000), 30) || '1' || repeat(repeat('}', 10000), 30), repeat(repeat('{"a":', 10000), 30) || '2' || repeat(repeat('}', 10000), 30))
SELECT json_contains('{"a": ' || repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30) || '}', repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30))
SELECT murmur3_32(1)
SELECT reservoir_quantile(x, 0.5, 100000000) FROM range(10) t(x) GROUP BY x
SELECT {'a': 1, 'b': {'c': [NULL, {'d': 'x'::ENUM('x', 'y')}]}}, 'x'::ENUM('x'), union_value(k := {'z': 1}), NULL
SELECT json_structure(repeat(repeat('[', 10000), 20) || repeat(repeat(']', 10000), 20))
SELECT json_contains(repeat(repeat('[', 10000), 30) || repeat(repeat(']', 10000), 30), '2')
SELECT reservoir_quantile(x, 0.5, 2147483647) FROM range(10) t(x)
