//! Atomic replacement of files, and the folder for files that can be made again.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter, Error, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the user's folder for files that can be recreated: `KILN_CACHE_DIR`, or `kiln` in the system's cache
/// folder. Returns `None` if the variable is empty, or the cache folder is unknown.
pub fn cache_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty());
    match std::env::var_os("KILN_CACHE_DIR") {
        Some(folder) => Some(PathBuf::from(folder)).filter(|f| !f.as_os_str().is_empty()),
        None => variable("XDG_CACHE_HOME")
            .or_else(|| variable("LOCALAPPDATA"))
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
            .map(|folder| folder.join("kiln")),
    }
}

/// Writes the file at `path` by `write`, atomically: readers, also after a crash, see the old file or the complete new
/// one. The new file is written next to its destination, under a name that begins with a dot. It is moved there once it
/// is on the disk. Leftovers of writers that died are removed. The new file has the old one's permissions. A symbolic
/// link stays, and its target is replaced. Where the file system has no locks, leftovers stay.
///
/// # Errors
/// The error of `write`; or if the file can't be written, or if `path` is a folder, a pipe or a device. The old
/// contents then stay.
pub fn replace<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    replace_locked(path, File::lock, write)
}

/// [`replace`], with the function that locks the new file.
fn replace_locked<E: From<io::Error>>(
    path: &Path,
    lock: fn(&File) -> io::Result<()>,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    let (new, mut file) = New::temporary(path, lock)?;
    write(&mut file)?;
    Ok(new.install(file)?)
}

/// Returns the result of locking a file, where a file system without locks is not an error: one on a network, or of a
/// program.
///
/// # Errors
/// The error of the lock, if it has another cause.
pub fn locked(result: io::Result<()>) -> io::Result<()> {
    /// ENOLCK, "No locks available".
    const NONE: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };
    match result {
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(()),
        Err(e) if cfg!(unix) && e.raw_os_error() == Some(NONE) => Ok(()),
        result => result,
    }
}

/// A temporary file, removed unless it has replaced its destination.
struct New {
    temporary: PathBuf,
    path: PathBuf,
    folder: PathBuf,
    prefix: OsString,
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.temporary.as_os_str().is_empty() {
            // An earlier error is the one to report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

impl New {
    /// Creates a new file next to the one at `path`, with its permissions.
    fn temporary(
        path: &Path,
        lock: fn(&File) -> io::Result<()>,
    ) -> io::Result<(New, BufWriter<File>)> {
        let path = followed(path)?;
        let Some(name) = path.file_name() else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the path names no file",
            ));
        };
        let old = match fs::metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            old => Some(old?),
        };
        if old.as_ref().is_some_and(|old| !old.is_file()) {
            let message = "this is not a regular file";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        }
        let prefix = prefix(name);
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (file, temporary) = create_temporary(&path, &prefix, lock)?;
        let new = New {
            temporary,
            folder: folder.to_path_buf(),
            path,
            prefix,
        };
        // Some file systems have no permissions to set; there all files have the same.
        if let Some(old) = old.map(|old| old.permissions())
            && old != file.metadata()?.permissions()
        {
            file.set_permissions(old)?;
        }
        Ok((new, BufWriter::new(file)))
    }

    /// Flushes the written data to the disk and gives the file its name.
    fn install(mut self, file: BufWriter<File>) -> io::Result<()> {
        // The file stays locked, and open, until it has its name.
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        self.temporary.clear();
        #[cfg(unix)]
        sync_folder(&self.folder)?;
        remove_leftovers(&self.folder, &self.prefix);
        Ok(())
    }
}

/// Flushes the names in a folder to the disk, where the folder can be read and its file system can do so.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    let Ok(folder) = File::open(folder) else {
        return Ok(());
    };
    match folder.sync_all() {
        Err(e) if !matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Err(e),
        _ => Ok(()),
    }
}

/// Returns the target of the symbolic links at `path`, if there are any.
fn followed(path: &Path) -> io::Result<PathBuf> {
    /// The number of links that systems follow.
    const LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path), // no link
        }
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        "too many symbolic links",
    ))
}

/// Returns the prefix of the names of files that are written next to a file of this name. Names may be 255 bytes long
/// on most systems, and a suffix follows.
fn prefix(name: &OsStr) -> OsString {
    const MAX_BYTES: usize = 200;
    let mut prefix = OsString::from(".");
    if name.len() <= MAX_BYTES {
        prefix.push(name);
    } else {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        prefix.push(format!("{:016x}", hasher.finish()));
    }
    prefix
}

/// Creates a new file, locked for as long as it is open.
///
/// The lock only tells others that the file is not a leftover. Where the file system has no locks, they can't take one
/// either, and leave it alone. So a lock that fails is not an error.
fn create_temporary(
    path: &Path,
    prefix: &OsString,
    lock: fn(&File) -> io::Result<()>,
) -> io::Result<(File, PathBuf)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let mut name = prefix.clone();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        name.push(format!(".{}.{count}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = match File::create_new(&temporary) {
            // A leftover of an earlier process with the same number.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        let _ = lock(&file);
        // Another writer may have mistaken it for a leftover before it was locked.
        if temporary.exists() {
            return Ok((file, temporary));
        }
    }
}

/// Removes files of [`create_temporary`] that nobody holds any more.
fn remove_leftovers(folder: &Path, prefix: &OsString) {
    let Ok(entries) = fs::read_dir(folder) else {
        return; // a later call removes them
    };
    let prefix = prefix.as_encoded_bytes();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let suffix = name.as_encoded_bytes().strip_prefix(prefix);
        let numbers = suffix.and_then(|r| r.strip_suffix(b".tmp"));
        let is_ours = |n: &[u8]| n.iter().all(|b| *b == b'.' || b.is_ascii_digit());
        if numbers.is_some_and(is_ours)
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_whole() {
        let folder = std::env::temp_dir().join(format!("kiln-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("data");
        let write = |text: &'static str| {
            replace::<io::Error>(&path, |f| {
                f.write_all(text.as_bytes())?;
                match text {
                    "bad" => Err(Error::other("no")),
                    _ => Ok(()),
                }
            })
        };
        write("first").unwrap();
        // The leftover of a dead writer, the file of a live one, and an unrelated file.
        let held = File::create(folder.join(".data.1.0.tmp")).unwrap();
        held.lock().unwrap();
        for name in [".data.1.1.tmp", ".data.x.tmp"] {
            fs::write(folder.join(name), "half").unwrap();
        }
        assert!(write("bad").is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        write("second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().flatten().collect();
        names.sort_by_key(|e| e.file_name());
        let names: Vec<_> = names.iter().map(|e| e.file_name()).collect();
        assert_eq!(names, [".data.1.0.tmp", ".data.x.tmp", "data"]);
        assert!(replace::<io::Error>(Path::new("/"), |_| Ok(())).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_system_without_locks_is_no_error() {
        assert!(locked(Ok(())).is_ok());
        assert!(locked(Err(ErrorKind::Unsupported.into())).is_ok());
        #[cfg(target_os = "linux")]
        for (number, fine) in [(37, true), (38, true), (95, true), (5, false), (9, false)] {
            let locked = locked(Err(Error::from_raw_os_error(number)));
            assert_eq!(locked.is_ok(), fine, "{number}");
        }
    }

    #[test]
    fn files_are_written_where_there_are_no_locks_and_none_is_left_over() {
        let folder = std::env::temp_dir().join(format!("kiln-unlocked-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("data");
        let names = || fs::read_dir(&folder).unwrap().flatten().count();
        for kind in [ErrorKind::Unsupported, ErrorKind::Other] {
            let lock: fn(&File) -> io::Result<()> = match kind {
                ErrorKind::Unsupported => |_| Err(ErrorKind::Unsupported.into()), // ENOTSUP, ENOSYS
                _ => |_| Err(Error::other("No locks available")),                 // ENOLCK
            };
            let text = kind.to_string();
            replace_locked::<io::Error>(&path, lock, |f| f.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(), 1);
        }
        // Neither an error nor a panic leaves the new file behind.
        let failed = |f: &mut BufWriter<File>| f.write_all(b"half").and(Err(Error::other("full")));
        assert!(replace::<io::Error>(&path, failed).is_err());
        let panicked = std::panic::catch_unwind(|| {
            replace::<io::Error>(&path, |_| std::panic::resume_unwind(Box::new(())))
        });
        assert!(panicked.is_err());
        assert_eq!(
            (fs::read_to_string(&path).unwrap(), names()),
            (ErrorKind::Other.to_string(), 1)
        );
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_replaced_file_keeps_its_mode_and_links_to_it() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = std::env::temp_dir().join(format!("kiln-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("deep")).unwrap();
        let write = |path: &Path| replace::<io::Error>(path, |f| f.write_all(b"new"));
        let file = folder.join("deep/data");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        // A link to a link, both relative; and a dangling link.
        symlink("deep/data", folder.join("link")).unwrap();
        symlink("link", folder.join("to-link")).unwrap();
        symlink("deep/none", folder.join("dangling")).unwrap();
        write(&folder.join("to-link")).unwrap();
        write(&folder.join("dangling")).unwrap();
        for (link, file) in [("to-link", &file), ("dangling", &folder.join("deep/none"))] {
            assert!(
                fs::symlink_metadata(folder.join(link))
                    .unwrap()
                    .is_symlink()
            );
            assert_eq!(fs::read_to_string(file).unwrap(), "new");
        }
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o640
        );
        // Anything that is not a file stays as it is.
        symlink("circle", folder.join("circle")).unwrap();
        for path in [
            &folder.join("deep"),
            &folder.join("circle"),
            Path::new("/dev/null"),
        ] {
            assert!(write(path).is_err(), "{path:?}");
        }
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn names_may_be_as_long_as_the_system_takes() {
        let folder = std::env::temp_dir().join(format!("kiln-long-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["x".repeat(255), "é".repeat(127), "y".repeat(201)] {
            let path = folder.join(&name);
            for _ in 0..2 {
                replace::<io::Error>(&path, |f| f.write_all(b"data")).unwrap();
            }
            assert_eq!(fs::read_to_string(&path).unwrap(), "data");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }
}
