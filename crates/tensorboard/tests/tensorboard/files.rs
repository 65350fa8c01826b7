//! Sessions, flushing, and writers that are killed.

use crate::{files, read};
use kiln_tensor::Result;
use kiln_tensorboard::*;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn sessions_have_files_of_their_own() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let first = SummaryWriter::new(WriterOptions::new(folder.path()).filename_suffix(".one"))?;
    for step in 0..10 {
        first.add_scalar("x", step, step)?;
    }
    first.close()?;
    assert_eq!(files(&folder).len(), 1);
    assert!(files(&folder)[0].to_string_lossy().ends_with(".one"));
    // Events after closing go to a new file, and so do those of a second writer.
    first.add_scalar("x", 10, 10)?;
    let second = SummaryWriter::new(folder.path())?;
    second.add_scalar("y", 0, 0)?;
    drop((first, second));
    assert_eq!(files(&folder).len(), 3);
    // TensorBoard discards the older events from step 5 on.
    std::thread::sleep(Duration::from_millis(1100)); // files are read in the order of their seconds
    let resumed = SummaryWriter::new(WriterOptions::new(folder.path()).purge_step(5))?;
    resumed.add_scalar("x", 50, 5)?;
    drop(resumed);
    let Some(all) = read(folder.path()) else {
        return Ok(());
    };
    let steps: Vec<u64> = all["runs"]["."]["scalars"]["x"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e[0].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 5]);
    Ok(())
}

#[test]
fn events_are_flushed_by_number_and_by_time() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let len = |folder: &TempDir| files(folder)[0].metadata().unwrap().len();
    let writer = SummaryWriter::new(
        WriterOptions::new(folder.path())
            .max_queue(3usize)
            .flush_secs(1u64),
    )?;
    let empty = len(&folder);
    for step in 0..3 {
        writer.add_scalar("x", 1, step)?;
    }
    assert_eq!(len(&folder), empty, "three may wait");
    writer.add_scalar("x", 1, 3)?;
    let four = len(&folder);
    assert!(four > empty);
    writer.add_scalar("x", 1, 4)?;
    writer.flush()?;
    let five = len(&folder);
    assert!(five > four);
    writer.add_scalar("x", 1, 5)?;
    let start = Instant::now();
    while len(&folder) == five {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "nothing was written in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// The name of a child process's folder.
const CHILD: &str = "KILN_TEST_TENSORBOARD_CHILD";

/// Adds scalars, says how many were flushed, and goes on until it is killed.
#[test]
fn child_that_is_killed() {
    let Some(folder) = std::env::var_os(CHILD) else {
        return;
    };
    let writer = SummaryWriter::new(WriterOptions::new(folder).max_queue(100usize)).unwrap();
    for step in 0u64.. {
        writer.add_scalar("x", step as f64, step).unwrap();
        if step % 7 == 0 {
            writer.flush().unwrap();
            println!("flushed {step}");
        }
    }
}

/// The scalars of a file, up to its end or to an incomplete record, by a reader that is independent of the writer.
fn scalars(file: &Path) -> Vec<u64> {
    let bytes = std::fs::read(file).unwrap();
    let (mut at, mut steps) = (0, Vec::new());
    while let Some(len) = bytes.get(at..at + 8) {
        let len = u64::from_le_bytes(len.try_into().unwrap()) as usize;
        let Some(record) = bytes.get(at + 12..at + 12 + len) else {
            break;
        };
        if bytes.len() < at + 16 + len {
            break;
        }
        // `step` is field 2, a varint, after the eight bytes of the time; a step of 0 is left out.
        let mut step = 0;
        if record.get(9) == Some(&0x10) {
            for (i, byte) in record[10..].iter().enumerate() {
                step |= u64::from(byte & 0x7f) << (7 * i);
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        steps.push(step);
        at += 16 + len;
    }
    steps.remove(0); // the version
    steps
}

#[test]
fn flushed_events_outlive_the_process() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let rounds = std::env::var("KILN_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(5);
    for round in 0..rounds {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::child_that_is_killed", "--nocapture"])
            .env(CHILD, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // A pseudorandom number of lines, the same in each run.
        let wanted = 1 + (round * 7919 + 13) % 97;
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(std::result::Result::ok);
        let flushed = lines
            .by_ref()
            .filter_map(|line| line.strip_prefix("flushed ")?.parse::<u64>().ok());
        let last_flushed = flushed.take(wanted).last().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let files = files(&folder);
        assert_eq!(files.len(), round + 1, "a session opens a new file");
        let newest = files
            .iter()
            .max_by_key(|f| f.metadata().unwrap().modified().unwrap())
            .unwrap();
        let found = scalars(newest);
        assert!(found.iter().copied().eq(0..found.len() as u64), "{found:?}");
        assert!(
            found.len() as u64 > last_flushed,
            "{last_flushed} was flushed, but {} are there",
            found.len()
        );
    }
    // The last record may be cut off, which ends a file.
    if let Some(all) = read(folder.path()) {
        assert!(
            !all["runs"]["."]["scalars"]["x"]
                .as_array()
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn a_million_scalars_are_all_there() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let writer = SummaryWriter::new(folder.path())?;
    for step in 0..1_000_000 {
        writer.add_scalar("loss", 1.0 / (step + 1) as f64, step)?;
    }
    writer.close()?;
    assert!(scalars(&files(&folder)[0]).into_iter().eq(0..1_000_000));
    Ok(())
}
