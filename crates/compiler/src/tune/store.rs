//! The file of measurements: one record per line, shared by threads and processes.
//!
//! A record is appended as one line under a lock, and a later line for a key replaces the earlier ones. A process
//! that dies while writing leaves a line without an end, which its checksum reveals. The line is skipped and
//! reported, and the next writer begins a new line. Once most lines are obsolete, the file is rewritten and replaced
//! in one step. Readers need no lock.
//!
//! A file is recognised as a store by its first line, which looks like a record, whole or not; an empty file is a
//! store too. Any other file, folder, pipe or device is neither read nor written.
//!
//! Next to the file `tune.jsonl` are `tune.jsonl.lock`, held while writing, and `tune.jsonl.measuring`, held while
//! measuring, so that processes neither measure a key twice nor disturb each other's times.

use super::record::{BEGINNING, Line, Record, look};
use hashbrown::HashMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Measurements, in a file or in memory alone. May be used from any number of threads.
#[derive(Debug)]
pub struct Store {
    path: Option<PathBuf>,
    contents: Mutex<Contents>,
    /// Held while measuring.
    measuring: Mutex<()>,
}

#[derive(Debug, Default)]
struct Contents {
    /// The text of the file when it was read.
    text: String,
    /// The length of the file and its time, which distinguish its states.
    stamp: Option<(u64, Option<SystemTime>)>,
    /// The range in the text of the record of each key.
    index: HashMap<String, Range<usize>>,
    /// Records that are in no file, or could not be written.
    unwritten: HashMap<String, Record>,
    damage: Vec<Damage>,
    /// The number of obsolete lines.
    obsolete: usize,
}

/// A line that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Its number in the file, from 1.
    pub line: usize,
    /// The problem.
    pub text: String,
}

/// The result of merging another file into a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The number of records whose keys were new, or that were measured later than those here.
    pub added: usize,
    /// The number of records whose keys were measured later here.
    pub older: usize,
    /// Lines of the other file that were skipped.
    pub damage: Vec<Damage>,
}

/// The number of obsolete lines that a file may have before it is rewritten; it may also have as many as records.
const MAX_OBSOLETE: usize = 256;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while measuring; see [`Store::wait_to_measure`].
pub struct Measuring<'a> {
    _thread: MutexGuard<'a, ()>,
    _process: Option<File>,
}

impl Store {
    /// The store in a file, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Store {
        Store {
            path: Some(path.into()),
            ..Store::in_memory()
        }
    }

    /// A store that ends with the process.
    pub fn in_memory() -> Store {
        Store {
            path: None,
            contents: Mutex::default(),
            measuring: Mutex::new(()),
        }
    }

    /// Returns the process's store in this file; for an empty path, the store in memory.
    pub fn of(path: &Path) -> Arc<Store> {
        static OPEN: Mutex<Vec<(PathBuf, Arc<Store>)>> = Mutex::new(Vec::new());
        let mut stores = lock(&OPEN);
        if let Some((_, store)) = stores.iter().find(|(p, _)| p == path) {
            return store.clone();
        }
        let store = Arc::new(match path.as_os_str().is_empty() {
            true => Store::in_memory(),
            false => Store::new(path),
        });
        stores.push((path.into(), store.clone()));
        store
    }

    /// Its file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Checks that its file, if there is one, is a store.
    ///
    /// # Errors
    /// If it is something else, or can't be read.
    pub fn check(&self) -> io::Result<()> {
        self.path.as_deref().map_or(Ok(()), is_store)
    }

    /// Checks that its file, which is created if there is none, can be written.
    ///
    /// # Errors
    /// If it can't be written; the error is the reason.
    pub fn writable(&self) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        is_store(path)?;
        let _lock = sibling(path, "lock")?;
        OpenOptions::new().append(true).create(true).open(path)?;
        Ok(())
    }

    /// The number of records that are kept only until the process ends, since the file can't be written.
    pub fn unwritten(&self) -> usize {
        match self.path {
            Some(_) => lock(&self.contents).unwritten.len(),
            None => 0,
        }
    }

    /// The record of a key.
    pub fn get(&self, key: &str) -> Option<Record> {
        let contents = self.fresh();
        if let Some(record) = contents.unwritten.get(key) {
            return Some(record.clone());
        }
        let line = contents.index.get(key)?.clone();
        Record::read(&contents.text[line])
    }

    /// All records, by key.
    pub fn records(&self) -> Vec<Record> {
        let contents = self.fresh();
        let written = contents.index.iter();
        let written = written.filter(|(key, _)| !contents.unwritten.contains_key(*key));
        let written = written.filter_map(|(_, line)| Record::read(&contents.text[line.clone()]));
        let mut records: Vec<Record> = written
            .chain(contents.unwritten.values().cloned())
            .collect();
        records.sort_by(|a, b| a.key.cmp(&b.key));
        records
    }

    /// Lines of the file that were skipped.
    pub fn damage(&self) -> Vec<Damage> {
        self.fresh().damage.clone()
    }

    /// Reads the file again, while nobody writes it; returns the damaged lines, including one without an end.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn verify(&self) -> io::Result<Vec<Damage>> {
        let Some(path) = &self.path else {
            return Ok(Vec::new());
        };
        fs::metadata(path)?;
        is_store(path)?;
        let _lock = hold(path).ok(); // in a folder that can't be written, nobody writes it either
        let bytes = fs::read(path)?;
        let mut contents = Contents::default();
        let ended = bytes.is_empty() || bytes.ends_with(b"\n");
        contents.read(&bytes);
        let last = contents.text.lines().last().unwrap_or_default();
        if !ended && matches!(look(last), Line::Damaged(_)) {
            contents.damage.push(Damage {
                line: contents.text.lines().count(),
                text: "it has no end".into(),
            });
        }
        Ok(contents.damage)
    }

    /// Stores a record, and replaces an earlier one of its key. If the file can't be written, the record is
    /// kept until the process ends.
    ///
    /// # Errors
    /// If the file can't be written; the error is the reason.
    pub fn put(&self, record: Record) -> io::Result<()> {
        let written = match &self.path {
            Some(path) => self.append(path, &[&record]),
            None => Err(io::Error::other("no file")),
        };
        if written.is_err() {
            let mut contents = lock(&self.contents);
            contents.unwritten.insert(record.key.clone(), record);
        }
        match self.path {
            Some(_) => written,
            None => Ok(()),
        }
    }

    /// Removes the records for which `drop` is true, and every obsolete line. Returns the number of records removed.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn remove(&self, drop: impl Fn(&Record) -> bool) -> io::Result<usize> {
        let list = self.records();
        let records = list.iter().filter(|r| drop(r));
        let removed: Vec<&str> = records.map(|r| &r.key[..]).collect();
        lock(&self.contents)
            .unwritten
            .retain(|key, _| !removed.contains(&&key[..]));
        if let Some(path) = &self.path {
            is_store(path)?;
            let _lock = hold(path)?;
            self.rewrite(path, &removed)?;
        }
        Ok(removed.len())
    }

    /// Marks failed and hung candidates, in the records for which `is_retried` is true, to be tried again when their
    /// keys are next measured. Returns the number of candidates. Failures with an earlier version of the engine need no
    /// mark, since the version is part of the key.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn retry(&self, is_retried: impl Fn(&Record) -> bool) -> io::Result<usize> {
        let failed = self.records().into_iter();
        let failed = failed.filter(|r| r.failures() > 0 && is_retried(r));
        let mut count = 0;
        for record in failed {
            count += record.failures();
            self.put(record.with_failures_open())?;
        }
        Ok(count)
    }

    /// Adds the records of another file; of keys in both, the record that was measured later is kept.
    ///
    /// # Errors
    /// If the other file can't be read or this one can't be written.
    pub fn merge(&self, other: &Path) -> io::Result<Merged> {
        let mut contents = Contents::default();
        is_store(other)?;
        contents.read(&fs::read(other)?);
        let mut merged = Merged {
            damage: contents.damage.clone(),
            ..Merged::default()
        };
        let mut added = Vec::new();
        for line in contents.index.values() {
            let Some(record) = Record::read(&contents.text[line.clone()]) else {
                continue;
            };
            // By time, then by text: the order of merging does not matter.
            let is_newer = |ours: Record| (record.at, record.line()) > (ours.at, ours.line());
            match self.get(&record.key).is_none_or(is_newer) {
                true => added.push(record),
                false => merged.older += 1,
            }
        }
        merged.added = added.len();
        added.sort_by(|a, b| a.key.cmp(&b.key));
        match &self.path {
            Some(path) => self.append(path, &added.iter().collect::<Vec<_>>())?,
            None => {
                let named = added.into_iter().map(|r| (r.key.clone(), r));
                lock(&self.contents).unwritten.extend(named);
            }
        }
        Ok(merged)
    }

    /// Waits until nobody else measures for this store, for other processes no longer than `patience`. Records may have
    /// been added meanwhile.
    pub fn wait_to_measure(&self, patience: Duration) -> Measuring<'_> {
        let thread = lock(&self.measuring);
        let process = self.path.as_ref().and_then(|path| {
            let file = sibling(path, "measuring").ok()?;
            let start = Instant::now();
            let is_busy = |file: &File| matches!(file.try_lock(), Err(TryLockError::WouldBlock));
            while is_busy(&file) && start.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(10));
            }
            Some(file)
        });
        Measuring {
            _thread: thread,
            _process: process,
        }
    }

    /// Appends lines under the lock; rewrites the file if most of its lines are obsolete.
    fn append(&self, path: &Path, records: &[&Record]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        is_store(path)?;
        let _lock = hold(path)?;
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .read(true)
            .open(path)?;
        let mut text = match ends_a_line(&mut file)? {
            true => String::new(),
            false => "\n".into(), // whoever wrote the last line died meanwhile
        };
        for record in records {
            text += &record.line();
            text.push('\n');
        }
        file.write_all(text.as_bytes())?;
        drop(file);
        let contents = self.fresh();
        let is_mostly_obsolete = contents.obsolete > MAX_OBSOLETE.max(contents.index.len());
        drop(contents);
        match is_mostly_obsolete {
            true => self.rewrite(path, &[]),
            false => Ok(()),
        }
    }

    /// Rewrites the file without obsolete lines and without the records of some keys. The caller holds the lock.
    fn rewrite(&self, path: &Path, without: &[&str]) -> io::Result<()> {
        if !path.exists() {
            return Ok(());
        }
        let mut contents = self.fresh();
        let lines = contents.text.lines().filter(|line| match look(line) {
            Line::Record(key) => {
                let newest = contents.index.get(key);
                let is_newest = newest.is_some_and(|r| contents.text[r.clone()] == **line);
                is_newest && !without.contains(&key)
            }
            Line::Other => true, // of another version, which still reads it
            Line::Damaged(_) => false,
        });
        let mut lines_kept: Vec<&str> = lines.collect();
        lines_kept.dedup();
        kiln_base::file::replace(path, |f| {
            lines_kept.iter().try_for_each(|line| writeln!(f, "{line}"))
        })?;
        contents.stamp = None;
        Ok(())
    }

    /// Returns the contents, read again if the file has changed.
    fn fresh(&self) -> MutexGuard<'_, Contents> {
        let mut contents = lock(&self.contents);
        let Some(path) = &self.path else {
            return contents;
        };
        let stamp = fs::metadata(path).ok();
        let stamp = stamp.map(|m| (m.len(), m.modified().ok()));
        if contents.stamp != stamp || stamp.is_none() {
            let bytes = is_store(path).and_then(|()| fs::read(path));
            contents.read(&bytes.unwrap_or_default());
            contents.stamp = stamp;
        }
        contents
    }
}

impl Contents {
    /// Replaces the contents by those of the bytes of a file.
    fn read(&mut self, bytes: &[u8]) {
        let (mut damage, mut index, mut obsolete) = (Vec::new(), HashMap::new(), 0);
        // Bytes that are not UTF-8 make their lines' checksums wrong.
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut offset = 0;
        for (number, full_line) in text.split_inclusive('\n').enumerate() {
            let line = full_line.trim_end_matches('\n');
            let range = offset..offset + line.len();
            offset += full_line.len();
            match look(line) {
                Line::Record(key) => {
                    let earlier = index.insert(key.to_string(), range);
                    obsolete += earlier.is_some() as usize;
                }
                Line::Other => {}
                // Another process may be writing it.
                Line::Damaged(_) if line.len() == full_line.len() => {}
                Line::Damaged(_) if line.is_empty() => obsolete += 1,
                Line::Damaged(why) => {
                    obsolete += 1;
                    damage.push(Damage {
                        line: number + 1,
                        text: why.into(),
                    });
                }
            }
        }
        (self.text, self.index) = (text, index);
        (self.damage, self.obsolete) = (damage, obsolete);
    }
}

/// True if a file ends with the end of a line, or is empty.
fn ends_a_line(file: &mut File) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Checks that the file at `path`, if there is one, is a store.
///
/// # Errors
/// If it is something else, or can't be read.
fn is_store(path: &Path) -> io::Result<()> {
    use std::io::Read;
    let refuse = |kind: &str| {
        let text = format!("this is not a store of measurements but {kind}; it is left alone");
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    };
    let metadata = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return refuse(match metadata.is_dir() {
            true => "a folder",
            false => "no regular file",
        });
    }
    let mut head = Vec::new();
    let beginning = File::open(path)?.take(BEGINNING.len() as u64);
    { beginning }.read_to_end(&mut head)?;
    // A process that died while writing may have left a part of the first line.
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    match head.is_empty() || !line.is_empty() && BEGINNING.as_bytes().starts_with(line) {
        true => Ok(()),
        false => refuse("another file"),
    }
}

/// A file next to the store's.
fn sibling(path: &Path, ending: &str) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.as_os_str().to_os_string();
    name.push(".");
    name.push(ending);
    OpenOptions::new().create(true).append(true).open(name)
}

/// Opens the lock next to the store's file and holds it until it is dropped or the process ends. Where the file system
/// has no locks, a process may miss what another one writes at the same time.
fn hold(path: &Path) -> io::Result<File> {
    let file = sibling(path, "lock")?;
    kiln_base::file::locked(file.lock())?;
    Ok(file)
}
