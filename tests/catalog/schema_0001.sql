CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version (version_num) VALUES ('0001');
CREATE TABLE counters (
	id INTEGER NOT NULL, 
	revision INTEGER NOT NULL, 
	"key" INTEGER NOT NULL, 
	placement INTEGER NOT NULL, 
	outbox INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO counters (id, revision, key, placement, outbox) VALUES (1, 43, 12, 12, 17);
CREATE TABLE namespaces (
	ns INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	name TEXT NOT NULL, 
	embedder_name TEXT NOT NULL, 
	embedder_fingerprint TEXT NOT NULL, 
	embedder_dim INTEGER NOT NULL, 
	create_time_ns INTEGER NOT NULL, 
	created INTEGER NOT NULL, 
	duplicates INTEGER NOT NULL, 
	rejected INTEGER NOT NULL, 
	deleted INTEGER NOT NULL, 
	memories INTEGER NOT NULL, 
	placed INTEGER NOT NULL, 
	outbox_head INTEGER NOT NULL, 
	next_cluster INTEGER NOT NULL, 
	next_episode INTEGER NOT NULL, 
	UNIQUE (name)
);
INSERT INTO namespaces (ns, name, embedder_name, embedder_fingerprint, embedder_dim, create_time_ns, created, duplicates, rejected, deleted, memories, placed, outbox_head, next_cluster, next_episode) VALUES (1, 'robot', 'tiny', 'f1', 8, 1795997142690746836, 9, 0, 1, 1, 8, 5, 17, 4, 3);
INSERT INTO namespaces (ns, name, embedder_name, embedder_fingerprint, embedder_dim, create_time_ns, created, duplicates, rejected, deleted, memories, placed, outbox_head, next_cluster, next_episode) VALUES (2, 'other', 'tiny', 'f1', 8, 1795997142705754691, 3, 0, 0, 0, 3, 2, 16, 2, 2);
CREATE TABLE memories (
	"key" INTEGER NOT NULL, 
	ns INTEGER NOT NULL, 
	memory_id TEXT NOT NULL, 
	state INTEGER NOT NULL, 
	text TEXT NOT NULL, 
	kind INTEGER NOT NULL, 
	task TEXT NOT NULL, 
	speaker TEXT NOT NULL, 
	session_id TEXT NOT NULL, 
	session_position INTEGER NOT NULL, 
	tags TEXT NOT NULL, 
	attributes TEXT NOT NULL, 
	importance DOUBLE, 
	confidence DOUBLE NOT NULL, 
	event_time_ns INTEGER NOT NULL, 
	create_time_ns INTEGER NOT NULL, 
	update_time_ns INTEGER NOT NULL, 
	expire_time_ns INTEGER, 
	context TEXT NOT NULL, 
	keywords TEXT NOT NULL, 
	evolved_tags TEXT NOT NULL, 
	annotated_by INTEGER NOT NULL, 
	links TEXT NOT NULL, 
	cluster INTEGER, 
	episode INTEGER, 
	placement_id INTEGER, 
	routing TEXT, 
	supersedes TEXT NOT NULL, 
	superseded_by TEXT NOT NULL, 
	access_count INTEGER NOT NULL, 
	last_access_time_ns INTEGER, 
	revision INTEGER NOT NULL, 
	error TEXT NOT NULL, 
	client_embedding BOOLEAN NOT NULL, 
	embedding BLOB, 
	PRIMARY KEY ("key")
);
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (1, 1, 'm-0', 4, 'crate 0 was seen at the dock; 猫 0', 1, 'unload', 'eye', 's', 0, '["dock"]', '{"slot":0,"weight":0.0,"full":true,"who":"it''s","list":["a","b"]}', 0.25, 0.5, 1700000000000000000, 1700000000000000000, 1700000000000000100, NULL, 'a crate, moved', '["crate"]', '["cargo"]', 2, '[["m-1",3,"same crate",0.5]]', 2, 1, 7, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":false,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 1, 1700000000000000090, 41, '', 0, X'61B82B3E6021CC3E9331243E5AE221BF59EFE03E85CD5D3ED56785BEDA60903E');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (10, 2, 'm-0', 2, 'other note 0', 0, '', '', 's', 0, '[]', '{}', NULL, 1.0, 1700000000000000000, 1700000000000000000, 1700000000000000070, NULL, '', '[]', '[]', 0, '[]', 1, 1, 11, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":true,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 0, NULL, 37, '', 0, X'F01D0EBF86C6BABE2467C9BE7D8D093E371300BEA355823DAB2DD93EE903DD3E');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (11, 2, 'm-1', 2, 'other note 1', 0, '', '', 's', 1, '[]', '{}', NULL, 1.0, 1700000000000000000, 1700000000000000000, 1700000000000000070, NULL, '', '[]', '[]', 0, '[]', 1, 1, 12, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":true,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 0, NULL, 38, '', 0, X'F3FF863C6AC4273F871B173F62D97BBE290E13BE792382BE46968C3E7E5ADDBC');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (12, 2, 'm-2', 1, 'other note 2', 0, '', '', 's', 2, '[]', '{}', NULL, 1.0, 1700000000000000000, 1700000000000000000, 1700000000000000000, NULL, '', '[]', '[]', 0, '[]', NULL, NULL, NULL, NULL, '[]', '', 0, NULL, 13, '', 0, NULL);
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (2, 1, 'm-1', 4, 'crate 1 was seen at the dock; 猫 1', 1, 'unload', 'eye', 's', 1, '["dock"]', '{"slot":1,"weight":1.5,"full":false,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000001, 1700000000000000000, 1700000000000000060, NULL, 'another crate', '[]', '[]', 0, '[]', 2, 1, 8, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":false,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 0, NULL, 33, '', 0, X'1874623D6D8A1CBEBD63F7BD56C736BFD9BB063F7550AB3E7CE6C2BDCBB8673E');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (4, 1, 'm-3', 3, 'crate 3 was seen at the dock; 猫 3', 1, 'unload', 'eye', 's', 3, '["dock"]', '{"slot":3,"weight":4.5,"full":false,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000003, 1700000000000000000, 1700000000000000060, NULL, '', '[]', '[]', 0, '[]', 2, 1, 10, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":false,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', 'new', 0, NULL, 35, '', 0, X'715380BE429889BD55C7233F3AC6813EAE9421BF7E2003BB617F75BE5C1A6A3D');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (5, 1, 'm-4', 2, 'crate 4 was seen at the dock; 猫 4', 1, 'unload', 'eye', 's', 4, '["dock"]', '{"slot":4,"weight":6.0,"full":true,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000004, 1700000000000000000, 1700000000000000030, 1701000000000000000, '', '[]', '[]', 0, '[]', 2, 2, 5, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":true,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 0, NULL, 21, '', 0, X'1342BABE8FCC19BF60BDE6BD8B4E433E1FEE033F4DD84B3DE15B80BE4A46B6BE');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (6, 1, 'm-5', 2, 'crate 5 was seen at the dock; 猫 5', 1, 'unload', 'eye', 's', 5, '["dock"]', '{"slot":5,"weight":7.5,"full":false,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000005, 1700000000000000000, 1700000000000000030, NULL, '', '[]', '[]', 0, '[]', 2, 2, 6, '{"decided_by":2,"candidates":[[1,"Docks",0.5,-12.5,0.75],[2,"猫",0.25,null,0.125]],"vote":2,"reason":"nearest centroid: \"Docks\"","provisional":true,"time_ns":1700000000000000000,"founded":true,"fallback":5,"slm_weight":0.5}', '[]', '', 0, NULL, 22, '', 0, X'1B70853E5F18E13ECCC221BF96D90BBD3472803EAC53AB3E1BAE253E49B2BD3E');
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (7, 1, 'm-6', 1, 'crate 6 was seen at the dock; 猫 6', 1, 'unload', 'eye', 's', 6, '["dock"]', '{"slot":6,"weight":9.0,"full":true,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000006, 1700000000000000000, 1700000000000000000, NULL, '', '[]', '[]', 0, '[]', NULL, NULL, NULL, NULL, '[]', '', 0, NULL, 7, '', 0, NULL);
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (8, 1, 'm-7', 5, 'crate 7 was seen at the dock; 猫 7', 1, 'unload', 'eye', 's', 7, '["dock"]', '{"slot":7,"weight":10.5,"full":false,"who":"it''s","list":["a","b"]}', 0.25, 1.0, 1700000000000000007, 1700000000000000000, 1795997143235660122, NULL, '', '[]', '[]', 0, '[]', NULL, NULL, NULL, NULL, '[]', '', 0, NULL, 39, 'it crashes', 0, NULL);
INSERT INTO memories (key, ns, memory_id, state, text, kind, task, speaker, session_id, session_position, tags, attributes, importance, confidence, event_time_ns, create_time_ns, update_time_ns, expire_time_ns, context, keywords, evolved_tags, annotated_by, links, cluster, episode, placement_id, routing, supersedes, superseded_by, access_count, last_access_time_ns, revision, error, client_embedding, embedding) VALUES (9, 1, 'new', 1, 'the crane is green now', 0, '', '', 't', 0, '[]', '{}', NULL, 1.0, 1700000000000000020, 1700000000000000020, 1700000000000000020, NULL, '', '[]', '[]', 0, '[]', NULL, NULL, NULL, NULL, '["m-3"]', '', 0, NULL, 9, '', 1, X'7C59FE3D57B529BE774A453F9E1BEFBEE6B9443E7B8F2ABD97C9D2BD40839E3E');
CREATE TABLE link_targets (
	ns INTEGER NOT NULL, 
	target INTEGER NOT NULL, 
	source INTEGER NOT NULL, 
	PRIMARY KEY (ns, target, source)
)
 WITHOUT ROWID

;
INSERT INTO link_targets (ns, target, source) VALUES (1, 2, 1);
CREATE TABLE sessions (
	ns INTEGER NOT NULL, 
	session_id TEXT NOT NULL, 
	next_position INTEGER NOT NULL, 
	PRIMARY KEY (ns, session_id)
)
 WITHOUT ROWID

;
INSERT INTO sessions (ns, session_id, next_position) VALUES (1, 's', 8);
INSERT INTO sessions (ns, session_id, next_position) VALUES (1, 't', 1);
INSERT INTO sessions (ns, session_id, next_position) VALUES (2, 's', 3);
CREATE TABLE clusters (
	ns INTEGER NOT NULL, 
	cluster INTEGER NOT NULL, 
	title TEXT NOT NULL, 
	summary TEXT NOT NULL, 
	tags TEXT NOT NULL, 
	representatives TEXT NOT NULL, 
	closed_episodes INTEGER NOT NULL, 
	memory_count INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	pinned BOOLEAN NOT NULL, 
	profile_stale BOOLEAN NOT NULL, 
	profile_count INTEGER NOT NULL, 
	create_time_ns INTEGER NOT NULL, 
	update_time_ns INTEGER NOT NULL, 
	revision INTEGER NOT NULL, 
	vector_sum BLOB NOT NULL, 
	PRIMARY KEY (ns, cluster)
);
INSERT INTO clusters (ns, cluster, title, summary, tags, representatives, closed_episodes, memory_count, state, pinned, profile_stale, profile_count, create_time_ns, update_time_ns, revision, vector_sum) VALUES (1, 1, 'Docks', 'what it is about', '["a","b"]', '[]', 0, 0, 1, 0, 0, 0, 1700000000000000000, 1700000000000000000, 14, X'0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO clusters (ns, cluster, title, summary, tags, representatives, closed_episodes, memory_count, state, pinned, profile_stale, profile_count, create_time_ns, update_time_ns, revision, vector_sum) VALUES (1, 2, 'Cranes', 'what it is about', '["a","b"]', '[]', 1, 5, 1, 0, 1, 0, 1700000000000000000, 1700000000000000100, 42, X'D3F687BCE290DB3D6BBDD03E0EE927BF4F8B4D3E8BC2A83E07FAB6BE70BFAD3E');
INSERT INTO clusters (ns, cluster, title, summary, tags, representatives, closed_episodes, memory_count, state, pinned, profile_stale, profile_count, create_time_ns, update_time_ns, revision, vector_sum) VALUES (2, 1, 'cluster 1', 'what it is about', '["a","b"]', '[]', 1, 2, 1, 0, 0, 0, 1700000000000000000, 1700000000000000000, 36, X'2A37FDBE4E94883EC41D393E77E0D1BD9F9A7CBE9C2233BE933C243FBB37BE3E');
CREATE TABLE episodes (
	ns INTEGER NOT NULL, 
	episode INTEGER NOT NULL, 
	session_id TEXT NOT NULL, 
	cluster INTEGER NOT NULL, 
	memory_count INTEGER NOT NULL, 
	first_position INTEGER NOT NULL, 
	last_position INTEGER NOT NULL, 
	open BOOLEAN NOT NULL, 
	last_time_ns INTEGER NOT NULL, 
	vector_sum BLOB NOT NULL, 
	PRIMARY KEY (ns, episode)
);
INSERT INTO episodes (ns, episode, session_id, cluster, memory_count, first_position, last_position, open, last_time_ns, vector_sum) VALUES (1, 1, 's', 2, 3, 0, 3, 0, 1700000000000000000, X'D88BE2BC32EC363E42E72D3F4AE38BBFAF3DAB3E7B980C3F927018BF46C0103F');
INSERT INTO episodes (ns, episode, session_id, cluster, memory_count, first_position, last_position, open, last_time_ns, vector_sum) VALUES (1, 2, 's', 2, 2, 0, 1, 1, 1700000000000000000, X'E047D3BD7E0125BE789A3EBF2658203E3927443FB6CEC43E4E13B6BDE07F6D3C');
INSERT INTO episodes (ns, episode, session_id, cluster, memory_count, first_position, last_position, open, last_time_ns, vector_sum) VALUES (2, 1, 's', 1, 2, 0, 1, 0, 1700000000000000000, X'F0E509BF4EC2943ED49F493ECA97E4BDB09089BE201C43BEF8E1323F412ECF3E');
CREATE TABLE failures (
	"key" INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	attempts INTEGER NOT NULL, 
	not_before_ns INTEGER NOT NULL, 
	error TEXT NOT NULL, 
	PRIMARY KEY ("key"), 
	FOREIGN KEY("key") REFERENCES memories ("key") ON DELETE CASCADE
);
INSERT INTO failures (key, state, attempts, not_before_ns, error) VALUES (7, 1, 1, 1700000000000000080, 'the model is away');
CREATE TABLE ingest_streams (
	ns INTEGER NOT NULL, 
	stream_id TEXT NOT NULL, 
	epoch INTEGER NOT NULL, 
	next_seq INTEGER NOT NULL, 
	created INTEGER NOT NULL, 
	duplicates INTEGER NOT NULL, 
	rejected INTEGER NOT NULL, 
	PRIMARY KEY (ns, stream_id)
)
 WITHOUT ROWID

;
INSERT INTO ingest_streams (ns, stream_id, epoch, next_seq, created, duplicates, rejected) VALUES (1, 'feed', 1, 10, 8, 0, 1);
CREATE TABLE create_requests (
	ns INTEGER NOT NULL, 
	request_id TEXT NOT NULL, 
	digest BLOB NOT NULL, 
	memory_id TEXT NOT NULL, 
	"key" INTEGER NOT NULL, 
	time_ns INTEGER NOT NULL, 
	PRIMARY KEY (ns, request_id)
)
 WITHOUT ROWID

;
INSERT INTO create_requests (ns, request_id, digest, memory_id, key, time_ns) VALUES (1, 'r-1', X'B049437232D0DFAF680164D66AA30F5AD731254C30F3465469F6A89E7CB06B06', 'new', 9, 1700000000000000020);
CREATE TABLE changes (
	revision INTEGER NOT NULL, 
	ns INTEGER NOT NULL, 
	kind INTEGER NOT NULL, 
	"key" INTEGER NOT NULL, 
	memory_id TEXT, 
	time_ns INTEGER NOT NULL, 
	PRIMARY KEY (revision)
);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (1, 1, 1, 1, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (10, 1, 5, 4, NULL, 1700000000000000020);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (11, 2, 1, 10, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (12, 2, 1, 11, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (13, 2, 1, 12, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (14, 1, 8, 1, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (15, 1, 8, 2, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (16, 1, 8, 3, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (17, 1, 2, 1, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (18, 1, 2, 2, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (19, 1, 2, 3, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (2, 1, 1, 2, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (20, 1, 2, 4, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (21, 1, 2, 5, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (22, 1, 2, 6, NULL, 1700000000000000030);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (23, 1, 3, 1, NULL, 1700000000000000040);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (24, 1, 3, 2, NULL, 1700000000000000040);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (25, 1, 3, 3, NULL, 1700000000000000040);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (26, 1, 3, 4, NULL, 1700000000000000040);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (27, 1, 9, 3, NULL, 1700000000000000040);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (28, 1, 4, 1, NULL, 1700000000000000050);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (29, 1, 4, 2, NULL, 1700000000000000050);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (3, 1, 1, 3, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (30, 1, 4, 1, NULL, 1700000000000000050);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (31, 1, 8, 2, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (32, 1, 2, 1, NULL, 1700000000000000060);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (33, 1, 2, 2, NULL, 1700000000000000060);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (34, 1, 2, 3, NULL, 1700000000000000060);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (35, 1, 2, 4, NULL, 1700000000000000060);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (36, 2, 8, 1, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (37, 2, 2, 10, NULL, 1700000000000000070);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (38, 2, 2, 11, NULL, 1700000000000000070);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (39, 1, 6, 8, NULL, 1795997143235660122);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (4, 1, 1, 4, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (40, 1, 4, 1, NULL, 1700000000000000100);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (41, 1, 5, 1, NULL, 1700000000000000100);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (42, 1, 8, 2, NULL, 1700000000000000100);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (43, 1, 7, 3, 'm-2', 1700000000000000100);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (5, 1, 1, 5, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (6, 1, 1, 6, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (7, 1, 1, 7, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (8, 1, 1, 8, NULL, 1700000000000000000);
INSERT INTO changes (revision, ns, kind, key, memory_id, time_ns) VALUES (9, 1, 1, 9, NULL, 1700000000000000020);
CREATE TABLE memory_history (
	revision INTEGER NOT NULL, 
	ns INTEGER NOT NULL, 
	"key" INTEGER NOT NULL, 
	cause INTEGER NOT NULL, 
	time_ns INTEGER NOT NULL, 
	old TEXT NOT NULL, 
	PRIMARY KEY (revision)
);
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (10, 1, 4, 9, 1700000000000000020, '{"superseded_by":""}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (28, 1, 1, 2, 1700000000000000050, '{"context":"","keywords":"[]","evolved_tags":"[]","links":"[]","annotated_by":0}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (29, 1, 2, 2, 1700000000000000050, '{"context":""}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (30, 1, 1, 3, 1700000000000000050, '{"context":"a crate","confidence":1.0,"superseded_by":""}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (32, 1, 1, 1, 1700000000000000060, '{"cluster":1}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (33, 1, 2, 2, 1700000000000000060, '{"cluster":1}');
INSERT INTO memory_history (revision, ns, key, cause, time_ns, old) VALUES (35, 1, 4, 4, 1700000000000000060, '{"cluster":1}');
CREATE TABLE index_ops (
	ns INTEGER NOT NULL, 
	seq INTEGER NOT NULL, 
	put BOOLEAN NOT NULL, 
	placement_id INTEGER NOT NULL, 
	cluster INTEGER NOT NULL, 
	event_time_ns INTEGER NOT NULL, 
	"key" INTEGER NOT NULL, 
	PRIMARY KEY (ns, seq)
)
 WITHOUT ROWID

;
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 10, 1, 10, 2, 1700000000000000003, 4);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 11, 0, 1, 1, 1700000000000000000, 1);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 12, 0, 2, 1, 1700000000000000001, 2);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 13, 0, 3, 1, 1700000000000000002, 3);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 14, 0, 4, 1, 1700000000000000003, 4);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 17, 0, 9, 2, 1700000000000000002, 3);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 4, 1, 4, 1, 1700000000000000003, 4);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 5, 1, 5, 2, 1700000000000000004, 5);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 6, 1, 6, 2, 1700000000000000005, 6);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 7, 1, 7, 2, 1700000000000000000, 1);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 8, 1, 8, 2, 1700000000000000001, 2);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (1, 9, 1, 9, 2, 1700000000000000002, 3);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (2, 15, 1, 11, 1, 1700000000000000000, 10);
INSERT INTO index_ops (ns, seq, put, placement_id, cluster, event_time_ns, key) VALUES (2, 16, 1, 12, 1, 1700000000000000000, 11);
CREATE VIRTUAL TABLE fts_1 USING fts5(tokens, tokenize='unicode61 remove_diacritics 0 categories ''L* M* N* P* S* C*''');
INSERT INTO fts_1 (rowid, tokens) VALUES (1, 'crate dock');
INSERT INTO fts_1 (rowid, tokens) VALUES (2, 'crate dock');
INSERT INTO fts_1 (rowid, tokens) VALUES (4, 'crate dock');
INSERT INTO fts_1 (rowid, tokens) VALUES (5, 'crane 猫');
INSERT INTO fts_1 (rowid, tokens) VALUES (6, 'crane 猫');
CREATE VIRTUAL TABLE fts_2 USING fts5(tokens, tokenize='unicode61 remove_diacritics 0 categories ''L* M* N* P* S* C*''');
INSERT INTO fts_2 (rowid, tokens) VALUES (10, 'word');
INSERT INTO fts_2 (rowid, tokens) VALUES (11, 'word');
CREATE UNIQUE INDEX memories_id ON memories (ns, memory_id);
CREATE UNIQUE INDEX memories_key ON memories (ns, "key");
CREATE INDEX memories_unfinished ON memories (ns, state, "key") WHERE state <> 4;
CREATE INDEX memories_episode ON memories (ns, episode, session_position) WHERE episode IS NOT NULL;
CREATE INDEX memories_cluster ON memories (ns, cluster) WHERE cluster IS NOT NULL;
CREATE UNIQUE INDEX memories_placement ON memories (ns, placement_id) WHERE placement_id IS NOT NULL;
CREATE INDEX memories_superseded ON memories (ns, superseded_by) WHERE superseded_by <> '';
CREATE INDEX link_targets_source ON link_targets (ns, source);
CREATE INDEX episodes_cluster ON episodes (ns, cluster);
CREATE INDEX create_requests_time ON create_requests (time_ns);
CREATE INDEX memory_history_key ON memory_history (ns, "key", revision);
