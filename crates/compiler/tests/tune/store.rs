//! The store: its contents, its handling of damage, and merging.

use crate::made_up::{folder, record};
use kiln_compiler::tune::{Damage, Store};
use std::fs;

fn keys(store: &Store) -> Vec<String> {
    store.records().into_iter().map(|r| r.key).collect()
}

#[test]
fn records_are_lines_that_other_tools_read() {
    let path = folder("lines").join("deep").join("tune.jsonl");
    let store = Store::new(&path);
    assert_eq!(store.get("k"), None);
    assert!(store.records().is_empty() && store.damage().is_empty());
    let first = record("k", 1, &[("a", 5), ("b", 7)]);
    store.put(first.clone()).unwrap();
    store.put(record("other", 2, &[("a", 1)])).unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(value["version"], 1);
        assert_eq!(value["trials"][0]["name"], "a");
    }
    for store in [&store, &Store::new(&path)] {
        assert_eq!(store.get("k"), Some(first.clone()));
        assert_eq!(keys(store), ["k", "other"]);
    }
    // The last record of a key counts, whoever wrote it.
    let second = record("k", 3, &[("a", 6)]);
    Store::new(&path).put(second.clone()).unwrap();
    assert_eq!(store.get("k"), Some(second));
    assert_eq!(store.remove(|r| r.key == "k").unwrap(), 1);
    assert_eq!(keys(&Store::new(&path)), ["other"]);
}

#[test]
fn damage_is_skipped_and_reported_and_nothing_else_is_lost() {
    let path = folder("damage").join("tune.jsonl");
    let store = Store::new(&path);
    for key in ["a", "b", "c", "d"] {
        store.put(record(key, 1, &[("x", 5)])).unwrap();
    }
    let whole = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = whole.lines().collect();
    // A changed number, half a line, and bytes that are not UTF-8.
    let mut bytes = lines[0].as_bytes().to_vec();
    bytes.push(b'\n');
    bytes.extend(lines[1].replace("[5]", "[4]").bytes());
    bytes.push(b'\n');
    bytes.extend(&lines[2].as_bytes()[..40]);
    bytes.extend([b'\n', 0xff, 0xfe, b'\n']);
    bytes.extend(lines[3].bytes());
    fs::write(&path, &bytes).unwrap();
    let damage = |line, text: &str| Damage {
        line,
        text: text.into(),
    };
    let expected = [
        damage(2, "its checksum is wrong"),
        damage(3, "it ends early"),
        damage(4, "it ends early"),
    ];
    assert_eq!(store.damage(), expected);
    assert_eq!(store.verify().unwrap(), expected);
    let unended = [&bytes[..], b"\n{"].concat();
    fs::write(&path, &unended).unwrap();
    assert_eq!(store.verify().unwrap()[3], damage(6, "it has no end"));
    fs::write(&path, &bytes).unwrap();
    assert_eq!(keys(&store), ["a", "d"]);
    // The last line has no end: the next one begins a new line.
    store.put(record("e", 1, &[("x", 5)])).unwrap();
    assert_eq!(keys(&Store::new(&path)), ["a", "d", "e"]);
    // However a file is truncated, whole records are read.
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let ends = whole[..cut].matches("\"}\n").count();
        let found = Store::new(&path).records().len();
        assert!((ends..=ends + 1).contains(&found), "{cut}: {found}");
    }
}

#[test]
fn a_file_of_dead_lines_is_written_anew_and_keeps_what_other_versions_wrote() {
    let path = folder("dead").join("tune.jsonl");
    let store = Store::new(&path);
    store.put(record("keep", 1, &[("x", 5)])).unwrap();
    let line = fs::read_to_string(&path).unwrap();
    let newer = reckoned(&line.trim_end().replace("\"version\":1", "\"version\":2"));
    fs::write(&path, format!("{line}{newer}\ngarbage\n")).unwrap();
    for i in 0..2000 {
        store.put(record("again", i, &[("x", i)])).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.lines().count() < 600, "{}", text.lines().count());
    assert!(text.contains(&newer) && !text.contains("garbage"));
    assert_eq!(keys(&store), ["again", "keep"]);
    assert_eq!(store.get("again").unwrap().at, 1999);
    assert!(store.damage().is_empty());
}

/// A line with its checksum corrected.
fn reckoned(line: &str) -> String {
    let (body, _) = line.rsplit_once(",\"sum\":").unwrap();
    let sum = xxhash_rust::xxh3::xxh3_64(body.as_bytes());
    format!("{body},\"sum\":\"{sum:016x}\"}}")
}

#[test]
fn merging_keeps_what_was_measured_last_in_any_order() {
    let folder = folder("merge");
    let [a, b] = ["a", "b"].map(|name| Store::new(folder.join(name)));
    a.put(record("both", 1, &[("x", 5)])).unwrap();
    a.put(record("only a", 1, &[("x", 5)])).unwrap();
    b.put(record("both", 2, &[("x", 9)])).unwrap();
    b.put(record("only b", 1, &[("x", 5)])).unwrap();
    let mut damaged = fs::read_to_string(b.path().unwrap()).unwrap();
    damaged += "garbage\n";
    fs::write(b.path().unwrap(), damaged).unwrap();
    let merged = a.merge(b.path().unwrap()).unwrap();
    assert_eq!((merged.added, merged.older, merged.damage.len()), (2, 0, 1));
    let merged = b.merge(a.path().unwrap()).unwrap();
    assert_eq!((merged.added, merged.older), (1, 2));
    assert_eq!(a.records(), b.records());
    assert_eq!(a.get("both").unwrap().at, 2);
    assert!(a.merge(&folder.join("nowhere")).is_err());
    let memory = Store::in_memory();
    memory.merge(a.path().unwrap()).unwrap();
    assert_eq!(memory.records(), a.records());
}

#[test]
fn what_cannot_be_written_is_kept_in_the_process() {
    let folder = folder("unwritable");
    // A folder stands in place of the file.
    let store = Store::new(&folder);
    assert!(store.put(record("k", 1, &[("x", 5)])).is_err());
    assert_eq!(keys(&store), ["k"]);
    let memory = Store::in_memory();
    memory.put(record("k", 1, &[("x", 5)])).unwrap();
    assert_eq!(keys(&memory), ["k"]);
    assert_eq!(memory.remove(|_| true).unwrap(), 1);
    assert!(keys(&memory).is_empty());
}

#[test]
fn threads_lose_nothing() {
    let path = folder("crowd").join("tune.jsonl");
    std::thread::scope(|scope| {
        for t in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let store = Store::new(path);
                for i in 0..100 {
                    let key = format!("{t} {i}");
                    store.put(record(&key, 1, &[("x", 5)])).unwrap();
                    assert!(store.get(&key).is_some());
                }
            });
        }
    });
    let store = Store::new(&path);
    assert_eq!(store.records().len(), 400);
    assert!(store.damage().is_empty());
}

#[test]
fn what_is_no_store_is_left_alone() {
    let folder = folder("strangers");
    let csv: String = (0..1000).map(|n| format!("{n},{n}\n")).collect();
    let strangers = [
        ("csv", &csv[..]),
        ("json", "{\"kind\":1}\n"),
        ("blank", "\n\nx\n"),
    ];
    for (name, text) in strangers {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        refuses(&path);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    fs::create_dir(folder.join("folder")).unwrap();
    refuses(&folder.join("folder"));
    #[cfg(unix)]
    {
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        refuses(&pipe);
        refuses(std::path::Path::new("/dev/zero"));
    }
    // Only a beginning of the first line was written.
    for torn in ["", "{", "{\"key\":\"k\",\"ver"] {
        let path = folder.join("torn");
        fs::write(&path, torn).unwrap();
        let store = Store::new(&path);
        store.put(record("k", 1, &[("a", 5)])).unwrap();
        assert_eq!(keys(&Store::new(&path)), ["k"]);
    }
}

#[track_caller]
fn refuses(path: &std::path::Path) {
    let store = Store::new(path);
    let wrong = |e: std::io::Error| assert!(e.to_string().contains("not a store"), "{e}");
    wrong(store.check().unwrap_err());
    wrong(store.writable().unwrap_err());
    wrong(store.verify().unwrap_err());
    wrong(store.remove(|_| true).unwrap_err());
    wrong(Store::in_memory().merge(path).unwrap_err());
    assert!(store.records().is_empty() && store.get("k").is_none());
    // Kept until the process ends.
    wrong(store.put(record("k", 1, &[("a", 5)])).unwrap_err());
    assert_eq!(keys(&store), ["k"]);
}
