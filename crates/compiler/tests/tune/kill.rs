//! Writers that are killed lose nothing that they had written, and leave no record that is read in part.

use crate::made_up::{folder, record};
use kiln_compiler::tune::Store;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The number of times that two writers are killed.
const ROUNDS: u64 = 120;

/// Not a test of its own: a writer process, until it is killed.
#[test]
fn child() {
    let Ok(path) = std::env::var("KILN_TEST_WRITER") else {
        return;
    };
    let number: u64 = std::env::var("KILN_TEST_NUMBER").unwrap().parse().unwrap();
    let store = Store::new(path);
    for i in 0.. {
        // Few keys, so that the file is often rewritten.
        let (key, at) = (format!("{} {}", number % 2, i % 7), number * 1_000_000 + i);
        store.put(record(&key, at, &[("x", at), ("y", i)])).unwrap();
        println!("\nwrote {key} {at} .");
    }
}

fn writer(path: &Path, number: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--nocapture"])
        .env("KILN_TEST_WRITER", path)
        .env("KILN_TEST_NUMBER", number.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a writer some time after it has begun to write; returns the records that it reported as written.
fn kill_after_start(mut child: Child, after: Duration) -> HashMap<String, u64> {
    let mut out = child.stdout.take().unwrap();
    let mut text = vec![0; 512];
    let len = out.read(&mut text).unwrap();
    text.truncate(len);
    std::thread::sleep(after);
    child.kill().unwrap(); // SIGKILL
    out.read_to_end(&mut text).unwrap();
    child.wait().unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines = text.lines().filter_map(|line| line.strip_prefix("wrote "));
    let whole = lines.filter_map(|line| line.strip_suffix(" ."));
    let pairs = whole.map(|line| line.rsplit_once(' ').unwrap());
    pairs
        .map(|(key, at)| (key.to_string(), at.parse().unwrap()))
        .collect()
}

#[test]
fn killed_writers_lose_nothing() {
    let path = folder("kill").join("tune.jsonl");
    let (mut torn, mut written) = (0, 0);
    for round in 0..ROUNDS {
        let children = [0, 1].map(|side| writer(&path, 2 * round + side));
        let mut wrote = HashMap::new();
        for (child, side) in children.into_iter().zip([3, 7]) {
            let after = Duration::from_micros(round * 977 * side % 9000);
            wrote.extend(kill_after_start(child, after));
        }
        written += wrote.len();
        let store = Store::new(&path);
        for (key, at) in &wrote {
            let found = store.get(key).unwrap_or_else(|| panic!("{key} is lost"));
            assert!(found.at >= *at, "{key}: {} is older than {at}", found.at);
        }
        for record in store.records() {
            let times: Vec<_> = record.trials.iter().filter_map(|t| t.time()).collect();
            assert_eq!(
                times[0].as_nanos() as u64,
                record.at,
                "trials of another record"
            );
        }
        torn += store.damage().len();
        assert!(store.damage().len() <= 4 * ROUNDS as usize);
    }
    assert!(
        written > ROUNDS as usize,
        "only {written} records were written"
    );
    println!("{} writers were killed; lines torn: {torn}", 2 * ROUNDS);
    // Temporary files that they left beside the store are removed when the file is next rewritten.
    Store::new(&path).remove(|_| false).unwrap();
    assert!(Store::new(&path).damage().is_empty());
}
