//! Event files.

use crate::messages::event::What;
use crate::messages::{Event, SessionLog};
use crate::record;
use prost::Message;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The version of the format; the first event of a file holds it.
const VERSION: &str = "brain.Event:2";
/// The state of a session that begins: events of the file's predecessors from this step on count no more.
const START: i32 = 1;

/// An open event file, and the events that were not written to it yet.
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
    waiting: Vec<u8>,
    /// The number of events in `waiting`.
    count: usize,
    /// Events that may wait.
    most: usize,
    /// The error of a write that nobody was told of.
    failed: Option<io::Error>,
}

impl EventFile {
    /// Makes a file in a folder, which is made too, with a name that no other has.
    pub(crate) fn create(folder: &Path, suffix: &str, most: usize) -> io::Result<EventFile> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(folder)?;
        let (seconds, host, process) = (now() as u64, host(), std::process::id());
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name =
                format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}{suffix}");
            let path = folder.join(name);
            match File::create_new(&path) {
                // In another container, a process may have the same number.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let mut file = EventFile {
                        path,
                        file: file?,
                        waiting: Vec::new(),
                        count: 0,
                        most,
                        failed: None,
                    };
                    file.add(now(), 0, What::FileVersion(VERSION.into()))?;
                    file.flush()?;
                    return Ok(file);
                }
            }
        }
    }

    /// Adds the event by which TensorBoard forgets events of this step and later ones in older files.
    pub(crate) fn purge(&mut self, step: i64) -> io::Result<()> {
        self.add(now(), step, What::SessionLog(SessionLog { status: START }))
    }

    /// Adds an event.
    pub(crate) fn add(&mut self, wall_time: f64, step: i64, what: What) -> io::Result<()> {
        let event = Event {
            wall_time,
            step,
            what: Some(what),
        };
        record::append(&mut self.waiting, &event.encode_to_vec());
        self.count += 1;
        match self.count > self.most {
            true => self.flush(),
            false => self.failed.take().map_or(Ok(()), Err),
        }
    }

    /// Writes the events that wait.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let written = self.file.write_all(&self.waiting);
        self.waiting.clear();
        self.count = 0;
        written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
    }

    /// Writes the events that wait; the next call tells of an error.
    pub(crate) fn flush_behind(&mut self) {
        if let Err(e) = self.flush() {
            self.failed = Some(e);
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs_f64()
}

/// The name of this machine.
pub(crate) fn host() -> String {
    let file = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let variable = || {
        ["HOSTNAME", "COMPUTERNAME"]
            .iter()
            .find_map(|n| std::env::var(n).ok())
    };
    let host = file.ok().or_else(variable).unwrap_or_default();
    match host.trim() {
        "" => "localhost".into(),
        host => host.replace(['/', '\\'], "_"),
    }
}
