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
/// The status of a session that starts: TensorBoard discards the events of older files from its step on.
const START: i32 = 1;

/// An open event file, and the events that have not been written to it yet.
pub(crate) struct EventFile {
    path: PathBuf,
    file: File,
    waiting: Vec<u8>,
    /// The number of events in `waiting`.
    count: usize,
    /// The maximum number of events in `waiting`.
    max_waiting: usize,
    /// The error of a flush in the background, which the next call returns.
    failed: Option<io::Error>,
}

impl EventFile {
    /// Creates a file with a unique name in a folder, which is created if it is missing.
    pub(crate) fn create(folder: &Path, suffix: &str, max_waiting: usize) -> io::Result<EventFile> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        std::fs::create_dir_all(folder)?;
        let (seconds, host, process) = (now() as u64, host(), std::process::id());
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name =
                format!("events.out.tfevents.{seconds:010}.{host}.{process}.{number}{suffix}");
            let path = folder.join(name);
            match File::create_new(&path) {
                // A process in another container may have the same id.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let mut file = EventFile {
                        path,
                        file: file?,
                        waiting: Vec::new(),
                        count: 0,
                        max_waiting,
                        failed: None,
                    };
                    file.add(now(), 0, What::FileVersion(VERSION.into()))?;
                    file.flush()?;
                    return Ok(file);
                }
            }
        }
    }

    /// Adds the event that makes TensorBoard discard the events of older files from this step on.
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
        match self.count > self.max_waiting {
            true => self.flush(),
            false => self.failed.take().map_or(Ok(()), Err),
        }
    }

    /// Writes the waiting events, or returns the error of an earlier write.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let written = self.file.write_all(&self.waiting);
        self.waiting.clear();
        self.count = 0;
        written.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
    }

    /// Writes the waiting events. An error is returned by the next call.
    pub(crate) fn flush_deferring_error(&mut self) {
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
