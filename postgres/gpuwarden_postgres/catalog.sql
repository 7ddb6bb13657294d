-- What PostgreSQL's clients ask their catalogue, for the public tables and views. `own_relations`,
-- `own_columns`, `own_types`, `own_settings` and the like are made by catalog.py. Object ids are those of
-- PostgreSQL for types, and counted from 16384 for tables.

CREATE TEMP TABLE pg_namespace AS
SELECT oid::UINTEGER AS oid, nspname, 10::UINTEGER AS nspowner, NULL::VARCHAR[] AS nspacl
FROM (VALUES (11, 'pg_catalog'), (2200, 'main'), (13000, 'information_schema')) t(oid, nspname);

CREATE TEMP TABLE pg_class AS
SELECT oid, name AS relname, 2200::UINTEGER AS relnamespace, 0::UINTEGER AS reltype, 0::UINTEGER AS reloftype,
    10::UINTEGER AS relowner, if(is_view, 0, 2)::UINTEGER AS relam, oid AS relfilenode, 0::UINTEGER AS reltablespace,
    0 AS relpages, -1::FLOAT AS reltuples, 0 AS relallvisible, 0::UINTEGER AS reltoastrelid, false AS relhasindex,
    false AS relisshared, 'p' AS relpersistence, if(is_view, 'v', 'r') AS relkind, columns::SMALLINT AS relnatts,
    0::SMALLINT AS relchecks, is_view AS relhasrules, false AS relhastriggers, false AS relhassubclass,
    false AS relrowsecurity, false AS relforcerowsecurity, true AS relispopulated, 'n' AS relreplident,
    false AS relispartition, 0::UINTEGER AS relrewrite, 0 AS relfrozenxid, 0 AS relminmxid,
    NULL::VARCHAR[] AS relacl, NULL::VARCHAR[] AS reloptions, NULL::VARCHAR AS relpartbound,
    0 AS xmin, 1259::UINTEGER AS tableoid
FROM own_relations;

CREATE TEMP TABLE pg_type AS
SELECT *, 0::UINTEGER AS typinput, 0::UINTEGER AS typoutput, 0::UINTEGER AS typreceive, 0::UINTEGER AS typsend,
    0::UINTEGER AS typmodin, 0::UINTEGER AS typmodout, 0::UINTEGER AS typanalyze, 'i' AS typalign,
    'x' AS typstorage, false AS typnotnull, 0::UINTEGER AS typbasetype, -1 AS typtypmod, 0 AS typndims,
    0::UINTEGER AS typcollation, NULL::VARCHAR AS typdefaultbin, NULL::VARCHAR AS typdefault,
    NULL::VARCHAR[] AS typacl, 1247::UINTEGER AS tableoid
FROM (
    SELECT oid, name AS typname, 11::UINTEGER AS typnamespace, 10::UINTEGER AS typowner, size::SMALLINT AS typlen,
        size > 0 AS typbyval, 'b' AS typtype, category AS typcategory, false AS typispreferred,
        true AS typisdefined, ',' AS typdelim, 0::UINTEGER AS typrelid, 0::UINTEGER AS typsubscript,
        0::UINTEGER AS typelem, array_oid AS typarray
    FROM own_types
    UNION ALL
    SELECT array_oid, '_' || name, 11, 10, -1, false, 'b', 'A', false, true, ',', 0, 0, oid, 0
    FROM own_types WHERE array_oid <> 0
);

CREATE TEMP TABLE pg_attribute AS
SELECT r.oid AS attrelid, c.name AS attname, c.type_oid AS atttypid, -1 AS attstattarget,
    t.typlen AS attlen, c.position::SMALLINT AS attnum, if(t.typcategory = 'A', 1, 0) AS attndims, -1 AS attcacheoff,
    c.type_modifier AS atttypmod, t.typbyval AS attbyval, 'i' AS attalign, 'x' AS attstorage, '' AS attcompression,
    c.is_required AS attnotnull, false AS atthasdef, false AS atthasmissing, '' AS attidentity,
    '' AS attgenerated, false AS attisdropped, true AS attislocal, 0 AS attinhcount, 0::UINTEGER AS attcollation,
    NULL::VARCHAR[] AS attacl, NULL::VARCHAR[] AS attoptions, NULL::VARCHAR[] AS attfdwoptions,
    NULL::VARCHAR AS attmissingval
FROM own_columns c JOIN own_relations r ON r.name = c.relation JOIN pg_type t ON t.oid = c.type_oid;

CREATE TEMP TABLE pg_description AS
SELECT oid AS objoid, 1259::UINTEGER AS classoid, 0 AS objsubid, comment AS description
FROM own_relations WHERE comment IS NOT NULL
UNION ALL
SELECT r.oid, 1259, c.position, c.comment
FROM own_columns c JOIN own_relations r ON r.name = c.relation WHERE c.comment IS NOT NULL;

CREATE TEMP TABLE pg_database AS
SELECT 16383::UINTEGER AS oid, 'gpuwarden' AS datname, 10::UINTEGER AS datdba, 6 AS encoding, 'c' AS datlocprovider,
    false AS datistemplate, true AS datallowconn, -1 AS datconnlimit, 0 AS datfrozenxid, 0 AS datminmxid,
    1663::UINTEGER AS dattablespace, 'C' AS datcollate, 'C' AS datctype, NULL::VARCHAR AS daticulocale,
    NULL::VARCHAR AS datcollversion, NULL::VARCHAR[] AS datacl;

CREATE TEMP TABLE pg_roles AS
SELECT 10::UINTEGER AS oid, 'gpuwarden' AS rolname, false AS rolsuper, true AS rolinherit, false AS rolcreaterole,
    false AS rolcreatedb, true AS rolcanlogin, false AS rolreplication, -1 AS rolconnlimit,
    NULL::VARCHAR AS rolpassword, NULL::TIMESTAMPTZ AS rolvaliduntil, false AS rolbypassrls,
    NULL::VARCHAR[] AS rolconfig;
CREATE TEMP TABLE pg_authid AS FROM pg_roles;
CREATE TEMP TABLE pg_user AS
SELECT rolname AS usename, oid AS usesysid, rolcreatedb AS usecreatedb, rolsuper AS usesuper,
    rolreplication AS userepl, rolbypassrls AS usebypassrls, rolpassword AS passwd, rolvaliduntil AS valuntil,
    rolconfig AS useconfig FROM pg_roles;

CREATE TEMP TABLE pg_am AS
SELECT 2::UINTEGER AS oid, 'heap' AS amname, 0::UINTEGER AS amhandler, 't' AS amtype;
CREATE TEMP TABLE pg_tablespace AS
SELECT 1663::UINTEGER AS oid, 'pg_default' AS spcname, 10::UINTEGER AS spcowner, NULL::VARCHAR[] AS spcacl,
    NULL::VARCHAR[] AS spcoptions;
CREATE TEMP TABLE pg_language AS
SELECT 14::UINTEGER AS oid, 'sql' AS lanname, 10::UINTEGER AS lanowner, false AS lanispl, true AS lanpltrusted,
    0::UINTEGER AS lanplcallfoid, 0::UINTEGER AS laninline, 0::UINTEGER AS lanvalidator, NULL::VARCHAR[] AS lanacl,
    2612::UINTEGER AS tableoid;
CREATE TEMP TABLE pg_settings AS
SELECT name, setting, NULL::VARCHAR AS unit, 'Preset Options' AS category, '' AS short_desc, NULL::VARCHAR AS extra_desc,
    'user' AS context, 'string' AS vartype, 'default' AS source, NULL::VARCHAR AS min_val, NULL::VARCHAR AS max_val,
    NULL::VARCHAR[] AS enumvals, setting AS boot_val, setting AS reset_val, false AS pending_restart
FROM own_settings;

CREATE TEMP TABLE pg_tables AS
SELECT 'main' AS schemaname, name AS tablename, 'gpuwarden' AS tableowner, NULL::VARCHAR AS tablespace,
    false AS hasindexes, false AS hasrules, false AS hastriggers, false AS rowsecurity
FROM own_relations WHERE NOT is_view;
CREATE TEMP TABLE pg_views AS
SELECT 'main' AS schemaname, name AS viewname, 'gpuwarden' AS viewowner, definition
FROM own_relations WHERE is_view;

-- What there is none of.
CREATE TEMP TABLE pg_aggregate (aggfnoid UINTEGER, aggkind VARCHAR, aggnumdirectargs SMALLINT, aggtransfn UINTEGER);
CREATE TEMP TABLE pg_attrdef (oid UINTEGER, adrelid UINTEGER, adnum SMALLINT, adbin VARCHAR);
CREATE TEMP TABLE pg_auth_members (roleid UINTEGER, member UINTEGER, grantor UINTEGER, admin_option BOOLEAN);
CREATE TEMP TABLE pg_cast (oid UINTEGER, castsource UINTEGER, casttarget UINTEGER, castfunc UINTEGER,
    castcontext VARCHAR, castmethod VARCHAR);
CREATE TEMP TABLE pg_collation (oid UINTEGER, collname VARCHAR, collnamespace UINTEGER, collowner UINTEGER,
    collprovider VARCHAR, collisdeterministic BOOLEAN, collencoding INTEGER, collcollate VARCHAR, collctype VARCHAR,
    colliculocale VARCHAR, collversion VARCHAR);
CREATE TEMP TABLE pg_constraint (oid UINTEGER, conname VARCHAR, connamespace UINTEGER, contype VARCHAR,
    condeferrable BOOLEAN, condeferred BOOLEAN, convalidated BOOLEAN, conrelid UINTEGER, contypid UINTEGER,
    conindid UINTEGER, conparentid UINTEGER, confrelid UINTEGER, confupdtype VARCHAR, confdeltype VARCHAR,
    confmatchtype VARCHAR, conislocal BOOLEAN, coninhcount INTEGER, connoinherit BOOLEAN, conkey SMALLINT[],
    confkey SMALLINT[], conpfeqop UINTEGER[], conppeqop UINTEGER[], conffeqop UINTEGER[], confdelsetcols SMALLINT[],
    conexclop UINTEGER[], conbin VARCHAR, tableoid UINTEGER);
CREATE TEMP TABLE pg_db_role_setting (setdatabase UINTEGER, setrole UINTEGER, setconfig VARCHAR[]);
CREATE TEMP TABLE pg_depend (classid UINTEGER, objid UINTEGER, objsubid INTEGER, refclassid UINTEGER,
    refobjid UINTEGER, refobjsubid INTEGER, deptype VARCHAR);
CREATE TEMP TABLE pg_enum (oid UINTEGER, enumtypid UINTEGER, enumsortorder FLOAT, enumlabel VARCHAR);
CREATE TEMP TABLE pg_event_trigger (oid UINTEGER, evtname VARCHAR, evtevent VARCHAR, evtowner UINTEGER,
    evtfoid UINTEGER, evtenabled VARCHAR, evttags VARCHAR[]);
CREATE TEMP TABLE pg_extension (oid UINTEGER, extname VARCHAR, extowner UINTEGER, extnamespace UINTEGER,
    extrelocatable BOOLEAN, extversion VARCHAR, extconfig UINTEGER[], extcondition VARCHAR[]);
CREATE TEMP TABLE pg_foreign_data_wrapper (oid UINTEGER, fdwname VARCHAR, fdwowner UINTEGER,
    fdwhandler UINTEGER, fdwvalidator UINTEGER, fdwacl VARCHAR[], fdwoptions VARCHAR[]);
CREATE TEMP TABLE pg_foreign_server (oid UINTEGER, srvname VARCHAR, srvowner UINTEGER, srvfdw UINTEGER,
    srvtype VARCHAR, srvversion VARCHAR, srvacl VARCHAR[], srvoptions VARCHAR[]);
CREATE TEMP TABLE pg_foreign_table (ftrelid UINTEGER, ftserver UINTEGER, ftoptions VARCHAR[]);
CREATE TEMP TABLE pg_index (indexrelid UINTEGER, indrelid UINTEGER, indnatts SMALLINT, indnkeyatts SMALLINT,
    indisunique BOOLEAN, indnullsnotdistinct BOOLEAN, indisprimary BOOLEAN, indisexclusion BOOLEAN,
    indimmediate BOOLEAN, indisclustered BOOLEAN, indisvalid BOOLEAN, indcheckxmin BOOLEAN, indisready BOOLEAN,
    indislive BOOLEAN, indisreplident BOOLEAN, indkey SMALLINT[], indcollation UINTEGER[], indclass UINTEGER[],
    indoption SMALLINT[], indexprs VARCHAR, indpred VARCHAR);
CREATE TEMP TABLE pg_indexes (schemaname VARCHAR, tablename VARCHAR, indexname VARCHAR, tablespace VARCHAR,
    indexdef VARCHAR);
CREATE TEMP TABLE pg_inherits (inhrelid UINTEGER, inhparent UINTEGER, inhseqno INTEGER, inhdetachpending BOOLEAN);
CREATE TEMP TABLE pg_locks (locktype VARCHAR, database UINTEGER, relation UINTEGER, pid INTEGER, mode VARCHAR,
    granted BOOLEAN);
CREATE TEMP TABLE pg_matviews (schemaname VARCHAR, matviewname VARCHAR, matviewowner VARCHAR, tablespace VARCHAR,
    hasindexes BOOLEAN, ispopulated BOOLEAN, definition VARCHAR);
CREATE TEMP TABLE pg_opclass (oid UINTEGER, opcmethod UINTEGER, opcname VARCHAR, opcnamespace UINTEGER,
    opcowner UINTEGER, opcfamily UINTEGER, opcintype UINTEGER, opcdefault BOOLEAN, opckeytype UINTEGER, tableoid UINTEGER);
CREATE TEMP TABLE pg_operator (oid UINTEGER, oprname VARCHAR, oprnamespace UINTEGER, oprowner UINTEGER,
    oprkind VARCHAR, oprleft UINTEGER, oprright UINTEGER, oprresult UINTEGER, oprcode UINTEGER, tableoid UINTEGER);
CREATE TEMP TABLE pg_partitioned_table (partrelid UINTEGER, partstrat VARCHAR, partnatts SMALLINT,
    partdefid UINTEGER, partattrs SMALLINT[]);
CREATE TEMP TABLE pg_policy (oid UINTEGER, polname VARCHAR, polrelid UINTEGER, polcmd VARCHAR,
    polpermissive BOOLEAN, polroles UINTEGER[], polqual VARCHAR, polwithcheck VARCHAR);
CREATE TEMP TABLE pg_proc (oid UINTEGER, proname VARCHAR, pronamespace UINTEGER, proowner UINTEGER,
    prolang UINTEGER, procost FLOAT, prorows FLOAT, provariadic UINTEGER, prosupport UINTEGER, prokind VARCHAR,
    prosecdef BOOLEAN, proleakproof BOOLEAN, proisstrict BOOLEAN, proretset BOOLEAN, provolatile VARCHAR,
    proparallel VARCHAR, pronargs SMALLINT, pronargdefaults SMALLINT, prorettype UINTEGER, proargtypes UINTEGER[],
    proallargtypes UINTEGER[], proargmodes VARCHAR[], proargnames VARCHAR[], proargdefaults VARCHAR, prosrc VARCHAR,
    probin VARCHAR, proconfig VARCHAR[], proacl VARCHAR[], tableoid UINTEGER);
CREATE TEMP TABLE pg_publication (oid UINTEGER, pubname VARCHAR, pubowner UINTEGER, puballtables BOOLEAN,
    pubinsert BOOLEAN, pubupdate BOOLEAN, pubdelete BOOLEAN, pubtruncate BOOLEAN, pubviaroot BOOLEAN);
CREATE TEMP TABLE pg_publication_namespace (oid UINTEGER, pnpubid UINTEGER, pnnspid UINTEGER);
CREATE TEMP TABLE pg_publication_rel (oid UINTEGER, prpubid UINTEGER, prrelid UINTEGER, prqual VARCHAR,
    prattrs SMALLINT[]);
CREATE TEMP TABLE pg_range (rngtypid UINTEGER, rngsubtype UINTEGER, rngmultitypid UINTEGER, rngcollation UINTEGER,
    rngsubopc UINTEGER);
CREATE TEMP TABLE pg_rewrite (oid UINTEGER, rulename VARCHAR, ev_class UINTEGER, ev_type VARCHAR,
    ev_enabled VARCHAR, is_instead BOOLEAN, tableoid UINTEGER);
CREATE TEMP TABLE pg_sequence (seqrelid UINTEGER, seqtypid UINTEGER, seqstart BIGINT, seqincrement BIGINT,
    seqmax BIGINT, seqmin BIGINT, seqcache BIGINT, seqcycle BOOLEAN);
CREATE TEMP TABLE pg_sequences (schemaname VARCHAR, sequencename VARCHAR, sequenceowner VARCHAR, data_type VARCHAR);
CREATE TEMP TABLE pg_shdescription (objoid UINTEGER, classoid UINTEGER, description VARCHAR);
CREATE TEMP TABLE pg_stat_activity (datid UINTEGER, datname VARCHAR, pid INTEGER, usename VARCHAR,
    application_name VARCHAR, state VARCHAR, query VARCHAR);
CREATE TEMP TABLE pg_stat_user_tables (relid UINTEGER, schemaname VARCHAR, relname VARCHAR, seq_scan BIGINT,
    n_live_tup BIGINT);
CREATE TEMP TABLE pg_statistic_ext (oid UINTEGER, stxrelid UINTEGER, stxname VARCHAR, stxnamespace UINTEGER,
    stxowner UINTEGER, stxstattarget INTEGER, stxkeys SMALLINT[], stxkind VARCHAR[], stxexprs VARCHAR);
CREATE TEMP TABLE pg_trigger (oid UINTEGER, tgrelid UINTEGER, tgparentid UINTEGER, tgname VARCHAR, tgfoid UINTEGER,
    tgtype SMALLINT, tgenabled VARCHAR, tgisinternal BOOLEAN, tgconstrrelid UINTEGER, tgconstrindid UINTEGER,
    tgconstraint UINTEGER, tgdeferrable BOOLEAN, tginitdeferred BOOLEAN, tgnargs SMALLINT, tgattr SMALLINT[],
    tgqual VARCHAR, tableoid UINTEGER);

CREATE TEMP TABLE pg_conversion (oid UINTEGER, conname VARCHAR, connamespace UINTEGER, conowner UINTEGER,
    conforencoding INTEGER, contoencoding INTEGER, conproc UINTEGER, condefault BOOLEAN, tableoid UINTEGER);
CREATE TEMP TABLE pg_largeobject_metadata (oid UINTEGER, lomowner UINTEGER, lomacl VARCHAR[]);
CREATE TEMP TABLE pg_opfamily (oid UINTEGER, opfmethod UINTEGER, opfname VARCHAR, opfnamespace UINTEGER,
    opfowner UINTEGER, tableoid UINTEGER);
CREATE TEMP TABLE pg_ts_config (oid UINTEGER, cfgname VARCHAR, cfgnamespace UINTEGER, cfgowner UINTEGER,
    cfgparser UINTEGER, tableoid UINTEGER);
CREATE TEMP TABLE pg_user_mappings (umid UINTEGER, srvid UINTEGER, srvname VARCHAR, umuser UINTEGER,
    usename VARCHAR, umoptions VARCHAR[]);

CREATE TEMP TABLE information_schema_schemata AS
SELECT 'gpuwarden' AS catalog_name, nspname AS schema_name, 'gpuwarden' AS schema_owner,
    NULL::VARCHAR AS default_character_set_name, NULL::VARCHAR AS sql_path FROM pg_namespace;
CREATE TEMP TABLE information_schema_tables AS
SELECT 'gpuwarden' AS table_catalog, 'main' AS table_schema, name AS table_name,
    if(is_view, 'VIEW', 'BASE TABLE') AS table_type, 'NO' AS is_insertable_into, 'NO' AS is_typed
FROM own_relations;
CREATE TEMP TABLE information_schema_views AS
SELECT 'gpuwarden' AS table_catalog, 'main' AS table_schema, name AS table_name, definition AS view_definition,
    'NONE' AS check_option, 'NO' AS is_updatable FROM own_relations WHERE is_view;
CREATE TEMP TABLE information_schema_columns AS
SELECT 'gpuwarden' AS table_catalog, 'main' AS table_schema, c.relation AS table_name, c.name AS column_name,
    c.position AS ordinal_position, NULL::VARCHAR AS column_default, if(c.is_required, 'NO', 'YES') AS is_nullable,
    if(t.typcategory = 'A', 'ARRAY', c.long_name) AS data_type, NULL::INTEGER AS character_maximum_length,
    NULL::INTEGER AS character_octet_length, CASE t.typname WHEN 'int2' THEN 16 WHEN 'int4' THEN 32 WHEN 'int8' THEN 64
        WHEN 'float4' THEN 24 WHEN 'float8' THEN 53 END AS numeric_precision,
    if(t.typname[:3] = 'int', 0, NULL) AS numeric_scale, if(t.typname[:9] = 'timestamp', 6, NULL) AS datetime_precision,
    'gpuwarden' AS udt_catalog, 'pg_catalog' AS udt_schema, t.typname AS udt_name, 'NO' AS is_identity,
    'NEVER' AS is_generated, NULL::VARCHAR AS generation_expression, 'NO' AS is_updatable
FROM own_columns c JOIN pg_type t ON t.oid = c.type_oid;
CREATE TEMP TABLE information_schema_table_constraints (constraint_catalog VARCHAR, constraint_schema VARCHAR,
    constraint_name VARCHAR, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR,
    constraint_type VARCHAR, is_deferrable VARCHAR, initially_deferred VARCHAR);
CREATE TEMP TABLE information_schema_key_column_usage (constraint_catalog VARCHAR, constraint_schema VARCHAR,
    constraint_name VARCHAR, table_catalog VARCHAR, table_schema VARCHAR, table_name VARCHAR, column_name VARCHAR,
    ordinal_position INTEGER, position_in_unique_constraint INTEGER);
CREATE TEMP TABLE information_schema_referential_constraints (constraint_catalog VARCHAR, constraint_schema VARCHAR,
    constraint_name VARCHAR, unique_constraint_catalog VARCHAR, unique_constraint_schema VARCHAR,
    unique_constraint_name VARCHAR, match_option VARCHAR, update_rule VARCHAR, delete_rule VARCHAR);
CREATE TEMP TABLE information_schema_constraint_column_usage (table_catalog VARCHAR, table_schema VARCHAR,
    table_name VARCHAR, column_name VARCHAR, constraint_catalog VARCHAR, constraint_schema VARCHAR,
    constraint_name VARCHAR);
CREATE TEMP TABLE information_schema_routines (specific_catalog VARCHAR, specific_schema VARCHAR,
    specific_name VARCHAR, routine_catalog VARCHAR, routine_schema VARCHAR, routine_name VARCHAR,
    routine_type VARCHAR, data_type VARCHAR);
CREATE TEMP TABLE information_schema_table_privileges AS
SELECT 'gpuwarden' AS grantor, 'gpuwarden' AS grantee, table_catalog, table_schema, table_name,
    'SELECT' AS privilege_type, 'NO' AS is_grantable, 'YES' AS with_hierarchy FROM information_schema_tables;
CREATE TEMP TABLE information_schema_role_table_grants AS FROM information_schema_table_privileges;

-- Functions.
CREATE TEMP MACRO version() AS own_setting('version');
CREATE TEMP MACRO format_type(o, m) AS (
    SELECT coalesce(if(m > 4 AND long_name = 'numeric', format('numeric({},{})', (m - 4) >> 16, (m - 4) & 65535), long_name), '???')
    FROM (SELECT max(own.long_name) AS long_name FROM own_type_names own WHERE own.oid = o));
CREATE TEMP MACRO current_setting(n) AS coalesce(own_setting(n),
    error('unrecognized configuration parameter "' || n || '"')), (n, missing_ok) AS own_setting(n);
CREATE TEMP MACRO set_config(n, v, is_local) AS v;
CREATE TEMP MACRO pg_advisory_unlock_all() AS NULL::VARCHAR;
CREATE TEMP MACRO pg_backend_pid() AS 0;
CREATE TEMP MACRO pg_is_in_recovery() AS false;
CREATE TEMP MACRO pg_encoding_to_char(e) AS if(e = 6, 'UTF8', '');
CREATE TEMP MACRO pg_char_to_encoding(e) AS if(upper(e) = 'UTF8', 6, -1);
CREATE TEMP MACRO pg_get_userbyid(o) AS if(o = 10, 'gpuwarden', 'unknown (OID=' || o || ')');
CREATE TEMP MACRO pg_client_encoding() AS 'UTF8';
CREATE TEMP MACRO pg_my_temp_schema() AS 0::UINTEGER;
CREATE TEMP MACRO pg_is_other_temp_schema(o) AS false;
CREATE TEMP MACRO pg_postmaster_start_time() AS NULL::TIMESTAMPTZ;
CREATE TEMP MACRO current_schemas(with_implicit) AS if(with_implicit, ['pg_catalog', 'main'], ['main']);
CREATE TEMP MACRO current_role() AS 'gpuwarden';
CREATE TEMP MACRO pg_table_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_type_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_function_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_operator_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_opclass_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_collation_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_statistics_obj_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_get_expr(e, r) AS NULL::VARCHAR, (e, r, pretty) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_constraintdef(o) AS NULL::VARCHAR, (o, pretty) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_indexdef(o) AS NULL::VARCHAR, (o, n, pretty) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_viewdef(o) AS (SELECT max(own.definition) FROM own_relations own WHERE own.oid = o),
    (o, pretty) AS (SELECT max(own.definition) FROM own_relations own WHERE own.oid = o);
CREATE TEMP MACRO pg_get_triggerdef(o) AS NULL::VARCHAR, (o, pretty) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_ruledef(o) AS NULL::VARCHAR, (o, pretty) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_functiondef(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_function_result(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_function_arguments(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_function_identity_arguments(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_function_sqlbody(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_partkeydef(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_statisticsobjdef_columns(o) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_get_serial_sequence(t, c) AS NULL::VARCHAR;
CREATE TEMP MACRO pg_relation_is_publishable(o) AS false;
CREATE TEMP MACRO pg_indexes_size(o) AS NULL::BIGINT;
CREATE TEMP MACRO pg_relation_size(o) AS NULL::BIGINT, (o, fork) AS NULL::BIGINT;
CREATE TEMP MACRO pg_table_size(o) AS NULL::BIGINT;
CREATE TEMP MACRO pg_total_relation_size(o) AS NULL::BIGINT;
CREATE TEMP MACRO pg_database_size(o) AS NULL::BIGINT;
CREATE TEMP MACRO pg_tablespace_location(o) AS '';
CREATE TEMP MACRO pg_size_pretty(n) AS format_bytes(n);
CREATE TEMP MACRO obj_description(o) AS obj_description(o, 'pg_class'), (o, c) AS (
    SELECT max(own.description) FROM pg_description own WHERE own.objoid = o AND own.objsubid = 0 AND c = 'pg_class');
CREATE TEMP MACRO shobj_description(o, c) AS NULL::VARCHAR;
CREATE TEMP MACRO col_description(o, n) AS (
    SELECT max(own.description) FROM pg_description own WHERE own.objoid = o AND own.objsubid = n);
CREATE TEMP MACRO has_table_privilege(t, p) AS upper(p) = 'SELECT', (u, t, p) AS upper(p) = 'SELECT';
CREATE TEMP MACRO has_any_column_privilege(t, p) AS upper(p) = 'SELECT', (u, t, p) AS upper(p) = 'SELECT';
CREATE TEMP MACRO has_column_privilege(t, c, p) AS upper(p) = 'SELECT', (u, t, c, p) AS upper(p) = 'SELECT';
CREATE TEMP MACRO has_schema_privilege(s, p) AS upper(p) = 'USAGE', (u, s, p) AS upper(p) = 'USAGE';
CREATE TEMP MACRO has_database_privilege(d, p) AS upper(p) = 'CONNECT', (u, d, p) AS upper(p) = 'CONNECT';
CREATE TEMP MACRO has_function_privilege(f, p) AS false, (u, f, p) AS false;
CREATE TEMP MACRO pg_has_role(r, p) AS true, (u, r, p) AS true;
CREATE TEMP MACRO quote_ident(x) AS if(regexp_full_match(x, '[a-z_][a-z0-9_$]*'), x, '"' || replace(x, '"', '""') || '"');
CREATE TEMP MACRO quote_literal(x) AS '''' || replace(x, '''', '''''') || '''';
CREATE TEMP MACRO array_upper(a, d) AS nullif(len(a), 0);
CREATE TEMP MACRO array_lower(a, d) AS if(len(a) > 0, 1, NULL);
CREATE TEMP MACRO _pg_expandarray(a) AS unnest(list_transform(a, lambda x, i: struct_pack(x := x, n := i)));
CREATE TEMP MACRO pg_typeof(x) AS lower(typeof(x));
CREATE TEMP MACRO own_relation_oid(x) AS coalesce(
    (SELECT max(own.oid) FROM own_oids own WHERE own.name = regexp_extract(replace(x, '"', ''), '[^.]*$')),
    try_cast(x AS UINTEGER), error('relation "' || x || '" does not exist'));
CREATE TEMP MACRO to_regtype(x) AS (SELECT max(own.oid) FROM own_type_names own WHERE own.name = x OR own.long_name = x);
CREATE TEMP MACRO to_regclass(x) AS (SELECT max(own.oid) FROM own_oids own WHERE own.name = regexp_extract(replace(x, '"', ''), '[^.]*$'));
CREATE TEMP MACRO own_relation_name(o) AS coalesce((SELECT max(own.name) FROM own_oids own WHERE own.oid = o), o::VARCHAR);
CREATE TEMP MACRO own_type_oid(x) AS coalesce(
    (SELECT max(own.oid) FROM own_type_names own WHERE own.name = replace(regexp_replace(x, '^pg_catalog\.', ''), '"', '') OR own.long_name = x),
    try_cast(x AS UINTEGER), error('type "' || x || '" does not exist'));
CREATE TEMP MACRO own_type_name(o) AS if(o = 0, '-', format_type(o, -1));
CREATE TEMP MACRO own_namespace_oid(x) AS coalesce(
    (SELECT max(own.oid) FROM pg_namespace own WHERE own.nspname = replace(x, '"', '')), try_cast(x AS UINTEGER),
    error('schema "' || x || '" does not exist'));
CREATE TEMP MACRO own_namespace_name(o) AS coalesce((SELECT max(own.nspname) FROM pg_namespace own WHERE own.oid = o), o::VARCHAR);
CREATE TEMP MACRO own_function_oid(x) AS coalesce(try_cast(x AS UINTEGER), error('function "' || x || '" does not exist'));
CREATE TEMP MACRO own_function_name(o) AS o::VARCHAR;
CREATE TEMP MACRO array_remove(a, x) AS list_filter(a, lambda v: v IS DISTINCT FROM x);
CREATE TEMP MACRO getdatabaseencoding() AS 'UTF8';
CREATE TEMP MACRO pg_ts_config_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_ts_dict_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_ts_parser_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_ts_template_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_conversion_is_visible(o) AS o IS NOT NULL;
CREATE TEMP MACRO pg_opfamily_is_visible(o) AS o IS NOT NULL;
