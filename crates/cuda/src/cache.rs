//! Compiled code on disk, shared by processes.
//!
//! A file is written under another name and then renamed, and begins with a checksum: a reader finds all of it or
//! nothing. A kernel's key names the unit that it was compiled in, and the unit's key names its code.
//!
//! Files carry the time of their last use. A process that adds files removes the least recently used ones if the
//! total exceeds the limit. A process that needs a removed file compiles its kernels again.

use super::library::{nvrtc_candidates, variable};
use super::nvrtc::{Code, Nvrtc, keeps_ptx};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The version of the format. Files of other versions are not read.
const FORMAT: u32 = 2;

/// Names a kernel or a unit.
pub(super) type Key = u128;

/// The key of a source compiled with these flags.
pub(super) fn key(source: &str, code: Code) -> Key {
    let mut h = Xxh3::new();
    h.update(&FORMAT.to_le_bytes());
    for flag in code.flags() {
        h.update(flag.as_bytes());
        h.update(b"\n");
    }
    h.update(source.as_bytes());
    h.digest128()
}

/// The known properties of this machine's NVRTC.
pub(super) struct Compiler {
    pub(super) version: (i32, i32),
    /// The compute capabilities that it compiles for.
    pub(super) architectures: Vec<u32>,
}

impl Compiler {
    fn bytes(&self) -> Vec<u8> {
        let architectures = self.architectures.iter().flat_map(|a| a.to_le_bytes());
        version_bytes(self.version)
            .into_iter()
            .chain(architectures)
            .collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Compiler> {
        let (version, words) = bytes.split_first_chunk::<8>()?;
        let version = u64::from_le_bytes(*version);
        let (words, tail) = words.as_chunks::<4>();
        tail.is_empty().then(|| Compiler {
            version: ((version >> 32) as i32, version as i32),
            architectures: words.iter().map(|a| u32::from_le_bytes(*a)).collect(),
        })
    }
}

/// The limit of the total size in bytes, unless `KILN_CACHE_SIZE` sets another.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// A folder of compiled code; without one, nothing is kept.
pub(super) struct Cache(Option<PathBuf>);

/// The version of the NVRTC that kernels are compiled by; `None` if there is none.
pub(super) fn compiler_version() -> Option<(u32, u32)> {
    static VERSION: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let (major, minor) = Cache::of_user().compiler()?.version;
        Some((major as u32, minor as u32))
    })
}

static HITS: AtomicU64 = AtomicU64::new(0);

/// The number of units of compiled code that this process has read from the disk cache.
pub fn cache_hits() -> u64 {
    HITS.load(Ordering::Relaxed)
}

impl Cache {
    /// The cache in the user's cache folder, if there is one. Machine code that holds its PTX has a folder of its
    /// own.
    pub(super) fn of_user() -> Cache {
        let name = if keeps_ptx() { "cuda-ptx" } else { "cuda" };
        Cache(kiln_base::file::cache_folder().map(|f| f.join(name)))
    }

    /// The unit that a kernel was compiled in.
    pub(super) fn unit_of(&self, kernel: Key, version: Option<(i32, i32)>) -> Option<Key> {
        let entry = self.read(&format!("{kernel:032x}.kernel"), version)?;
        Some(Key::from_le_bytes(entry.try_into().ok()?))
    }

    /// The code of a unit.
    pub(super) fn code(&self, unit: Key, version: Option<(i32, i32)>) -> Option<Vec<u8>> {
        let code = self.read(&format!("{unit:032x}.code"), version)?;
        HITS.fetch_add(1, Ordering::Relaxed);
        Some(code)
    }

    /// Stores the code of a unit of these kernels. Failure to write the cache is not an error.
    pub(super) fn store(&self, unit: Key, kernels: &[Key], code: &[u8], version: (i32, i32)) {
        let written = self.write(&format!("{unit:032x}.code"), code, version);
        for kernel in kernels {
            if written.is_some() {
                let name = format!("{kernel:032x}.kernel");
                let _ = self.write(&name, &unit.to_le_bytes(), version);
            }
        }
    }

    /// This machine's NVRTC, if it has one. Opening that large library takes longer than loading a program's kernels,
    /// so the properties of a known file are stored.
    pub(super) fn compiler(&self) -> Option<Compiler> {
        // The system's loader resolves a name without a path by these.
        let loader = std::fs::metadata("/etc/ld.so.cache").and_then(|f| f.modified());
        let loader = (variable("LD_LIBRARY_PATH"), loader.ok());
        let name = nvrtc_candidates().into_iter().find_map(|path| {
            let file = path.is_absolute().then(|| path.metadata().ok()).flatten()?;
            let signature = format!(
                "{path:?} {} {:?} {loader:?}",
                file.len(),
                file.modified().ok()?
            );
            Some(format!("{:032x}.nvrtc", xxh3_128(signature.as_bytes())))
        });
        let stored = name.as_ref().and_then(|name| self.read(name, None));
        if let Some(compiler) = stored.as_deref().and_then(Compiler::from_bytes) {
            return Some(compiler);
        }
        let nvrtc = Nvrtc::get().ok()?;
        let compiler = Compiler {
            version: nvrtc.version(),
            architectures: nvrtc.architectures(),
        };
        if let Some(name) = name {
            let _ = self.write(&name, &compiler.bytes(), compiler.version);
        }
        Some(compiler)
    }

    /// Removes the least recently used files until all are within the limit.
    pub(super) fn shrink(&self) {
        let limit = std::env::var("KILN_CACHE_SIZE").ok();
        let limit = limit.and_then(|mib| mib.trim().parse::<u64>().ok());
        self.shrink_to(limit.map_or(DEFAULT_LIMIT, |mib| mib.saturating_mul(1 << 20)));
    }

    fn shrink_to(&self, limit: u64) {
        let entries = self.0.as_ref().and_then(|f| std::fs::read_dir(f).ok());
        let entries = entries.into_iter().flatten().flatten();
        // A file that another process removes meanwhile is skipped.
        let file = |e: std::fs::DirEntry| {
            let metadata = e.metadata().ok().filter(|m| m.is_file())?;
            Some((metadata.modified().ok()?, metadata.len(), e.path()))
        };
        let mut files: Vec<_> = entries.filter_map(file).collect();
        let mut bytes: u64 = files.iter().map(|f| f.1).sum();
        if bytes <= limit {
            return;
        }
        files.sort();
        for (_, len, path) in files {
            if bytes <= limit / 4 * 3 {
                return; // leave room for the next additions
            }
            let _ = std::fs::remove_file(path);
            bytes -= len;
        }
    }

    /// The contents of a file, if it is intact and was written by this version of the compiler, or any if `None`.
    fn read(&self, name: &str, version: Option<(i32, i32)>) -> Option<Vec<u8>> {
        let path = self.0.as_ref()?.join(name);
        let mut bytes = std::fs::read(&path).ok()?;
        let (head, body) = bytes.split_at_checked(16)?;
        let (written_by, contents) = body.split_at_checked(8)?;
        let is_same_version = version.is_none_or(|v| written_by == version_bytes(v));
        if !is_same_version || xxh3_128(body).to_le_bytes() != head || contents.is_empty() {
            return None;
        }
        // Failure to write the cache is not an error.
        let used = std::fs::File::options().append(true).open(path);
        let _ = used.and_then(|file| file.set_modified(SystemTime::now()));
        Some(bytes.split_off(24))
    }

    fn write(&self, name: &str, contents: &[u8], version: (i32, i32)) -> Option<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let folder = self.0.as_ref()?;
        std::fs::create_dir_all(folder).ok()?;
        let mut body = version_bytes(version).to_vec();
        body.extend_from_slice(contents);
        let mut bytes = xxh3_128(&body).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{name}.{}.{count}", std::process::id()));
        let written = std::fs::write(&temporary, bytes)
            .and_then(|()| std::fs::rename(&temporary, folder.join(name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.ok()
    }
}

fn version_bytes((major, minor): (i32, i32)) -> [u8; 8] {
    (((major as u32 as u64) << 32) | minor as u32 as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn least_recently_used_files_are_removed_first() {
        let folder = std::env::temp_dir().join(format!("kiln-cuda-lru-{}", std::process::id()));
        let cache = Cache(Some(folder.clone()));
        let hour = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 3600);
        for unit in 1..=8 {
            cache.store(unit, &[100 + unit], &[unit as u8; 1000], (13, 0));
            for name in [
                format!("{unit:032x}.code"),
                format!("{:032x}.kernel", 100 + unit),
            ] {
                let file = std::fs::File::options()
                    .append(true)
                    .open(folder.join(name));
                file.unwrap().set_modified(hour(unit as u64)).unwrap();
            }
        }
        let remaining = || {
            (1..=8)
                .filter(|u| folder.join(format!("{u:032x}.code")).exists())
                .collect::<Vec<Key>>()
        };
        cache.shrink_to(1 << 20);
        assert_eq!(remaining().len(), 8);
        // Unit 1 is used again.
        assert!(cache.code(1, None).is_some());
        std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(|| cache.shrink_to(5000)))));
        assert_eq!(remaining(), [1, 7, 8]);
        assert!(cache.unit_of(107, None).is_some() && cache.unit_of(102, None).is_none());
        cache.shrink_to(0);
        assert!(remaining().is_empty());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn compilers_are_read_as_they_were_written() {
        let (version, architectures) = ((13, 1), vec![75, 90, 121]);
        let written = Compiler {
            version,
            architectures,
        };
        assert!(Compiler::from_bytes(&written.bytes()[..9]).is_none());
        let read = Compiler::from_bytes(&written.bytes()).unwrap();
        assert_eq!(
            (read.version, read.architectures),
            (written.version, written.architectures)
        );
    }

    #[test]
    fn damaged_files_and_other_compilers_code_are_not_found() {
        let folder = std::env::temp_dir().join(format!("kiln-cuda-cache-{}", std::process::id()));
        let cache = Cache(Some(folder.clone()));
        cache.store(7, &[1, 2], b"code", (13, 0));
        for version in [None, Some((13, 0))] {
            assert_eq!(cache.unit_of(2, version), Some(7));
            assert_eq!(cache.code(7, version).as_deref(), Some(&b"code"[..]));
        }
        assert_eq!(cache.code(7, Some((12, 9))), None);
        assert_eq!(cache.unit_of(3, None), None);

        let file = folder.join(format!("{:032x}.code", 7));
        let intact = std::fs::read(&file).unwrap();
        for i in 0..intact.len() {
            let mut damaged = intact.clone();
            damaged[i] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert_eq!(cache.code(7, None), None, "byte {i}");
            std::fs::write(&file, &intact[..i]).unwrap();
            assert_eq!(cache.code(7, None), None, "cut at {i}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
